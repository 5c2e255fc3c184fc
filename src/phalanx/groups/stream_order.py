"""How operations on a device with streams fit between its other work: what a group tells such a device.

A device type registers its order here; groups ask for it by the type of their tensors. Without any, nothing is asked.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch.distributed as dist
from torch import Tensor

_BACKEND = "phalanx"


class PendingOperation(Protocol):
    """An operation under way that those who synchronize its device wait for. Threads may share it."""

    def done(self) -> bool:
        """Tell whether it has ended, well or not."""

    def settle(self) -> None:
        """Block until it has ended, well or not."""

    def untold(self) -> BaseException | None:
        """Return why it failed, if nobody has told the program. Does not wait."""

    def tell(self) -> None:
        """Note that the program has been told."""


class StreamOrder(Protocol):
    """What a device type wants to know. Threads may share it.

    Attributes:
        runs_at_once: Whether work on the device is done when the call that starts it returns.
    """

    runs_at_once: bool

    def launch(self, reads: Sequence[Tensor], writes: Sequence[Tensor], *, operation: str, lane: int) -> object:
        """Put an operation behind the current stream, before it starts; return a ticket for it.

        Args:
            operation: Its name, for messages.
            lane: Stands for the group: its operations come one after the other.
        """

    def wait(self, ticket: object) -> None:
        """Put the current stream behind the operation, which is over."""

    def finish_stream(self) -> None:
        """Block until the current stream is done, if this process uses the device."""

    def started(self, operation: PendingOperation, *, owner: object) -> None:
        """Note an operation under way: synchronizing its device waits for it.

        Args:
            owner: The thread that is its rank, as current_thread_rank() has it; None when ranks are no threads.
        """

    def raise_failure(self, *, is_last: bool = False) -> None:
        """Raise why an operation failed that was waited for by synchronizing alone.

        Args:
            is_last: Whether those count too that nobody has waited for, because nobody will.

        Raises:
            BaseException: The first such failure; the program has been told then.
        """

    def take_failure(self) -> BaseException | None:
        """Return the first failure that the program has not been told of, and count it as told."""


# By device type. Written by orders() alone; every operation looks whether it is empty, so it is no function.
registered: dict[str, StreamOrder] = {}


def orders(device_type: str, order: StreamOrder) -> None:
    """Register a device type: groups serve its tensors, and tell `order` about it."""
    registered[device_type] = order
    _tell_torch(device_type)


def order_of(device_type: str) -> StreamOrder | None:
    """Return what a device type has registered, or None."""
    return registered.get(device_type)


def is_virtual(device_type: str) -> bool:
    """Tell whether the devices of a type that has registered are virtual ones."""
    order = registered.get(device_type)
    return order is not None and order.runs_at_once


def device_types() -> list[str]:
    """Return the device types that have registered."""
    return list(registered)


def _tell_torch(device_type: str) -> None:
    """Have init_process_group("phalanx") mean this device as well, and no backend at all mean phalanx for it."""
    backends = dist.Backend
    served = backends.backend_capability.get(_BACKEND)
    if served is not None and device_type not in served:
        backends.backend_capability[_BACKEND] = [*served, device_type]
    backends.default_device_backend_map.setdefault(device_type, _BACKEND)
