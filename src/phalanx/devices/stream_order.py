"""Collectives between the streams of virtual devices: what they wait for, and who waits for them.

Operations of a device run when they are called, so a collective finds its data ready. One that goes on while the caller
does other things is pending: synchronizing the device waits for it, as it would for a GPU's stream of collectives.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Sequence

from torch import Tensor

from phalanx.collectives import Work
from phalanx.devices import races
from phalanx.devices.library import Library
from phalanx.errors import PhalanxError
from phalanx.groups.stream_order import orders


class DeviceStreamOrder:
    """The order of one process's virtual devices. Threads may share it."""

    def __init__(self, library: Library) -> None:
        self._library = library
        self._lock = threading.Lock()  # guards _pending
        self._pending: list[Work] = []
        library.when_synchronizing(self._finish_pending)

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

    def started(self, work: Work) -> None:
        """Note a collective under way."""
        with self._lock:
            before = len(self._pending)
            self._pending = [other for other in self._pending if not other.done()]
            self._pending.append(work)
            self._library.add_pending(len(self._pending) - before)

    def _finish_pending(self, _: int) -> None:
        with self._lock:
            pending, self._pending = self._pending, []
            self._library.add_pending(-len(pending))
        for work in pending:
            with contextlib.suppress(PhalanxError):  # told to whoever waits for the collective itself
                work.wait()


def register(library: Library, device_type: str) -> None:
    """Have groups serve tensors of virtual devices, in the order of their streams."""
    orders(device_type, DeviceStreamOrder(library))
