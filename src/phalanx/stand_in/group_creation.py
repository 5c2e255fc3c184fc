"""The arguments with which torch makes a group, for stand-ins whose constructors do not get all of them.

torch makes all groups in one function. It passes no name to Gloo, neither rank nor store to MPI, and no device to a
group that is written in Python. While a stand-in is installed, a wrapper of that function stores its arguments here.
"""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch

from phalanx.torch_backend.process_group import PhalanxProcessGroup
from phalanx.torch_backend.untyped import Store


@dataclass(frozen=True)
class GroupCreation:
    """A group that is being made.

    Attributes:
        name: Its name.
        ranks: Its members, as ranks of the world; empty for the default group.
        store: The store through which its ranks meet.
        timeout: How long its operations may take.
        device: The device that this rank is bound to, or None.
    """

    name: str
    ranks: tuple[int, ...]
    store: Store
    timeout: timedelta
    device: torch.device | None

    @property
    def is_default(self) -> bool:
        """Whether it is the default group."""
        return not self.ranks


class _Current(threading.local):
    making: GroupCreation | None = None


_current = _Current()


def current() -> GroupCreation | None:
    """Return the group that the calling thread is making; None if the program calls a constructor directly."""
    return _current.making


def recorded(make: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap torch's function, so that current() returns its arguments and stand-ins are completed."""
    signature = inspect.signature(make)

    @functools.wraps(make)
    def make_and_record(*args: Any, **kwargs: Any) -> Any:
        given = signature.bind(*args, **kwargs).arguments
        outer, _current.making = _current.making, _read(given)
        try:
            made = make(*args, **kwargs)
        finally:
            _current.making = outer
        _complete(made[0], given.get("device_id"))
        return made

    return make_and_record


def _read(given: dict[str, Any]) -> GroupCreation:
    return GroupCreation(
        name=str(given["group_name"]),
        ranks=tuple(given["global_ranks_in_group"]),
        store=given["store"],
        timeout=given["timeout"],
        device=given.get("device_id"),
    )


def _complete(group: Any, device: torch.device | None) -> None:
    if not isinstance(group, PhalanxProcessGroup):
        return
    if device is not None:
        group.bound_device_id = device
    # Make the engine's group now, because all ranks must take part; the first operation may be a message of two ranks.
    group.make_engines()
