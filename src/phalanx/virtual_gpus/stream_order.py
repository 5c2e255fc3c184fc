"""The order of collectives and the streams of virtual devices.

Operations of a device run when they are called, so a collective finds its data ready. An asynchronous collective is
pending while the caller does other things: synchronizing the device waits for it, as it would for a GPU's stream of
collectives. If it fails and the program has not waited for it, the next synchronization raises the failure. If there is
none, the program ends with an error.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Sequence

import torch
from torch import Tensor

from phalanx.devices import races
from phalanx.groups.stream_order import StreamOrder, order_of, orders
from phalanx.groups.tensor_gate import tensor_with_memory
from phalanx.virtual_gpus.library import Library


class DeviceStreamOrder(StreamOrder):
    """The order of one process's virtual devices. Threads may share it."""

    runs_at_once = True

    def __init__(self, library: Library) -> None:
        super().__init__(library.add_pending)
        library.when_synchronizing(lambda _: self.finish_pending())  # native code calls it, so it must not raise

    def launch(self, reads: Sequence[Tensor], writes: Sequence[Tensor], *, operation: str, group_number: int) -> object:
        """Let a collective run after the current stream; return its position, or None if the race detector is off.

        Raises:
            RaceError: Another stream is not done with a tensor.
        """
        if not races.is_on():
            return None
        reads, writes = _with_memory(reads), _with_memory(writes)
        if not reads and not writes:
            return None
        device = next(tensor.device.index for tensor in (*reads, *writes))
        return races.begin_collective(reads, writes, group_number=group_number, operation=operation), device

    def wait(self, position: object) -> None:
        """Let the current stream continue after a collective that has ended."""
        if isinstance(position, tuple):
            races.wait_collective(*position)


def _with_memory(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return the tensors that have the memory; those that the engine will refuse have none."""
    with torch._C.DisableTorchFunctionSubclass():
        return [held for tensor in tensors if (held := tensor_with_memory(tensor)) is not None]


def register(library: Library, device_type: str) -> None:
    """Make groups serve tensors of virtual devices, in the order of their streams."""
    order = DeviceStreamOrder(library)
    os.register_at_fork(after_in_child=order.forget)
    atexit.register(order.end)
    orders(device_type, order)


def raise_failure(device_type: str) -> None:
    """Raise the failure of a collective that the program waited for by synchronizing a device.

    Raises:
        BaseException: The first failure that has not been raised yet.
    """
    order = order_of(device_type)
    if order is not None:
        order.raise_failure()
