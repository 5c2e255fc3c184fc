"""Collectives between the streams of virtual devices: what they wait for, and who waits for them.

Operations of a device run when they are called, so a collective finds its data ready. One that goes on while the caller
does other things is pending: synchronizing the device waits for it, as it would for a GPU's stream of collectives. When
it fails, and nobody has waited for the collective itself, whoever synchronizes is told; at the latest, the end of the
program is not a success.
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
import threading
from collections.abc import Sequence

from torch import Tensor

from phalanx.devices import races
from phalanx.devices.library import Library
from phalanx.errors import PeerLeftError
from phalanx.groups.stream_order import PendingOperation, order_of, orders
from phalanx.launch.context import has_failed

_log = logging.getLogger("phalanx")


class DeviceStreamOrder:
    """The order of one process's virtual devices. Threads may share it."""

    def __init__(self, library: Library) -> None:
        self._library = library
        self._lock = threading.Lock()  # guards _pending and _failed
        self._pending: list[PendingOperation] = []  # under way, or failed and nobody knows
        self._failed: list[PendingOperation] = []  # waited for by synchronizing, in vain
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

    def started(self, operation: PendingOperation) -> None:
        """Note a collective under way."""
        with self._lock:
            over = [other for other in self._pending if other.done()]
        for other in over:
            other.settle()  # without a wait: it gives back its tensors
        if over:
            self._take_out(over)
        with self._lock:
            self._pending.append(operation)
            self._library.add_pending(1)

    def raise_failure(self, *, is_last: bool = False) -> None:
        """Raise why a collective failed that was waited for by synchronizing alone.

        Args:
            is_last: Whether those count too that nobody has waited for.

        Raises:
            BaseException: The first such failure.
        """
        if self._failed or is_last:
            errors = self._take(self._failed + self._pending if is_last else self._failed)
            if errors:
                raise errors[0]

    def take_failure(self) -> BaseException | None:
        """Return the first failure that the program has not been told of, and count it as told."""
        return next(iter(self._take(self._failed + self._pending)), None)

    def _take(self, operations: list[PendingOperation]) -> list[BaseException]:
        with self._lock:
            untold = [(one, error) for one in operations if (error := one.untold()) is not None]
            self._failed = []
        for operation, _ in untold:
            operation.tell()
        return [error for _, error in untold]

    def _finish_pending(self, _: int) -> None:
        """Wait for what is under way. Called by native code, which an exception can't pass: failures are kept."""
        with self._lock:
            pending = list(self._pending)
        for operation in pending:
            operation.settle()
        # Another thread may do the same meanwhile: each waits for all, and the first takes them out.
        self._failed += [operation for operation in self._take_out(pending, with_failures=True) if operation.untold()]

    def _take_out(self, settled: list[PendingOperation], *, with_failures: bool = False) -> list[PendingOperation]:
        """Count those as pending no longer; one whose failure nobody knows stays, unless it is taken out as well."""
        with self._lock:
            taken = {one for one in settled if with_failures or one.untold() is None}.intersection(self._pending)
            left = [operation for operation in self._pending if operation not in taken]
            gone = [operation for operation in self._pending if operation in taken]
            self._library.add_pending(-len(gone))
            self._pending = left
        return gone

    def forget(self) -> None:
        """Forget everything, in a forked child: what is under way is its parent's."""
        self._lock = threading.Lock()
        self._library.add_pending(-len(self._pending))
        self._pending, self._failed = [], []

    def end(self) -> None:
        """End the process if a collective has failed unnoticed, as NCCL's watchdog would have done long before."""
        if has_failed():
            return
        # One that was under way until some rank ended has not failed: with NCCL nobody would have looked.
        errors = [e for e in self._take(self._failed + self._pending) if not isinstance(e, PeerLeftError)]
        if errors:
            _log.error(
                "a collective failed, and the program ended without having waited for it; its results are wrong\n"
                "  do       call work.wait() or torch.cuda.synchronize() before results are used\n%s",
                errors[0],
            )
            logging.shutdown()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(1)  # nothing else changes the exit code at this point


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
