"""Collectives between the streams of virtual devices: what they wait for, and who waits for them.

Operations of a device run when they are called, so a collective finds its data ready. One that goes on while the caller
does other things is pending: synchronizing the device waits for it, as it would for a GPU's stream of collectives. When
it fails, and nobody has waited for the collective itself, whoever synchronizes is told; at the latest, the end of the
program is not a success.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Sequence

from torch import Tensor

from phalanx.devices import races
from phalanx.devices.library import Library
from phalanx.groups.pending import PendingOperations
from phalanx.groups.stream_order import order_of, orders


class DeviceStreamOrder(PendingOperations):
    """The order of one process's virtual devices. Threads may share it."""

    runs_at_once = True

    def __init__(self, library: Library) -> None:
        super().__init__(library.add_pending)
        library.when_synchronizing(lambda _: self.finish_pending())  # native code, which an exception can't pass

    def launch(self, reads: Sequence[Tensor], writes: Sequence[Tensor], *, operation: str, lane: int) -> object:
        """Put a collective behind the current stream; return a ticket for it, or None when races are not looked for.

        Raises:
            RaceError: Another stream is not done with a tensor.
        """
        if not races.is_on():
            return None
        device = next(tensor.device.index for tensor in (*reads, *writes))
        return races.begin_collective(reads, writes, lane=lane, operation=operation), device

    def wait(self, ticket: object) -> None:
        """Put the current stream behind a collective that is over."""
        if isinstance(ticket, tuple):
            races.wait_collective(*ticket)

    def finish_stream(self) -> None:
        """Do nothing: what was called before is done."""


def register(library: Library, device_type: str) -> None:
    """Have groups serve tensors of virtual devices, in the order of their streams."""
    order = DeviceStreamOrder(library)
    os.register_at_fork(after_in_child=order.forget)
    atexit.register(order.end)
    orders(device_type, order)


def raise_failure(device_type: str) -> None:
    """Raise why a collective failed that synchronizing a device has waited for.

    Raises:
        BaseException: The first failure that the program has not been told of.
    """
    order = order_of(device_type)
    if order is not None:
        order.raise_failure()
