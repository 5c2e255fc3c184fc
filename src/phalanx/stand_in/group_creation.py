"""What torch knows of the group it is making, for stand-ins whose constructors are told too little.

torch makes all groups in one function. It hands Gloo no name, MPI neither rank nor store, and a group written in Python
does not learn its device. While a stand-in is installed, that function leaves what it was called with here.
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
        ranks: Its members as ranks of the world; empty for the default group.
        store: Where its ranks meet.
        timeout: How long its operations may take.
        device: The device that this rank is bound to, if it is.
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
    """Return what the calling thread is making; None when somebody calls a constructor directly."""
    return _current.making


def telling(make: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap torch's function so that it tells what it makes, and completes groups that are ours."""
    signature = inspect.signature(make)

    @functools.wraps(make)
    def make_and_tell(*args: Any, **kwargs: Any) -> Any:
        given = signature.bind(*args, **kwargs).arguments
        outer, _current.making = _current.making, _read(given)
        try:
            made = make(*args, **kwargs)
        finally:
            _current.making = outer
        _complete(made[0], given.get("device_id"))
        return made

    return make_and_tell


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
    # A message may be the first thing that two ranks exchange: an engine that all have to make can't wait for it.
    group.make_engines()
