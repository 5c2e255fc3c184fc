"""Operations under way on a device, and failures that the program has not been told of.

On a GPU, synchronizing the device is a way to wait for a collective. So whoever synchronizes waits for what is pending
here, and is told what failed; at the latest, the end of the program is not a success.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Callable, Iterable

from phalanx.errors import PeerLeftError
from phalanx.groups.stream_order import PendingOperation
from phalanx.launch.context import current_thread_rank, has_failed

_log = logging.getLogger("phalanx")
_Operations = dict[PendingOperation, object]  # with their owners


def _ignore(_: int) -> None:
    """Take no note."""


def _own(operations: _Operations) -> _Operations:
    """Return those of the calling rank; all of them when the caller is no thread's rank."""
    caller = current_thread_rank()
    return {one: owner for one, owner in operations.items() if caller is None or owner is caller}


class PendingOperations:
    """What is under way on the devices of one type. Threads may share it.

    A rank that is a thread has to do with its own operations alone: one of another rank may be waiting for this very
    rank. Whoever is no such rank has to do with all of them.

    Args:
        count: Told by how many there are more or fewer.
    """

    def __init__(self, count: Callable[[int], None] = _ignore) -> None:
        self._count = count
        self._lock = threading.Lock()  # guards _pending and _failed, which say whose an operation is
        self._pending: _Operations = {}  # under way, or failed and nobody knows
        self._failed: _Operations = {}  # waited for by synchronizing, in vain

    def started(self, operation: PendingOperation, *, owner: object) -> None:
        """Note an operation under way.

        Args:
            owner: The thread that is its rank, as current_thread_rank() has it; None when ranks are no threads.
        """
        with self._lock:
            over = [other for other in self._pending if other.done()]
        for other in over:
            other.settle()  # without a wait: it gives back its tensors
        if over:
            self._take_out(over)
        with self._lock:
            self._pending[operation] = owner
            self._count(1)

    def finish_pending(self) -> None:
        """Wait for what is under way. Never raises: failures are kept for raise_failure()."""
        with self._lock:
            pending = _own(self._pending)
        for operation in pending:
            operation.settle()
        # Another thread may do the same meanwhile: each waits for all, and the first takes them out.
        taken = self._take_out(pending, with_failures=True)
        with self._lock:
            self._failed |= {operation: owner for operation, owner in taken.items() if operation.untold()}

    def raise_failure(self, *, is_last: bool = False) -> None:
        """Raise why an operation failed that was waited for by synchronizing alone.

        Args:
            is_last: Whether those count too that nobody has waited for.

        Raises:
            BaseException: The first such failure.
        """
        if self._failed or is_last:
            errors = self._take(_own, with_pending=is_last)
            if errors:
                raise errors[0]

    def take_failure(self) -> BaseException | None:
        """Return the first failure that the program has not been told of, and count it as told."""
        return next(iter(self._take(_own, with_pending=True)), None)

    def _take(self, choose: Callable[[_Operations], _Operations], *, with_pending: bool) -> list[BaseException]:
        with self._lock:
            failed = choose(self._failed)
            looked_at = failed | choose(self._pending) if with_pending else failed
            untold = [(one, error) for one in looked_at if (error := one.untold()) is not None]
            self._failed = {one: owner for one, owner in self._failed.items() if one not in failed}
        for operation, _ in untold:
            operation.tell()
        return [error for _, error in untold]

    def _take_out(self, settled: Iterable[PendingOperation], *, with_failures: bool = False) -> _Operations:
        """Count those as pending no longer; one whose failure nobody knows stays, unless it is taken out as well."""
        with self._lock:
            taken = {one for one in settled if with_failures or one.untold() is None}
            gone = {one: owner for one, owner in self._pending.items() if one in taken}
            self._count(-len(gone))
            self._pending = {one: owner for one, owner in self._pending.items() if one not in taken}
        return gone

    def forget(self) -> None:
        """Forget everything, in a forked child: what is under way is its parent's."""
        self._lock = threading.Lock()
        self._count(-len(self._pending))
        self._pending, self._failed = {}, {}

    def end(self) -> None:
        """End the process if an operation has failed unnoticed, as NCCL's watchdog would have done long before."""
        if has_failed():
            return
        # One that was under way until some rank ended has not failed: with NCCL nobody would have looked.
        errors = [e for e in self._take(dict, with_pending=True) if not isinstance(e, PeerLeftError)]
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
