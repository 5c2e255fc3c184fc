"""Ranks as threads of the calling process: the same engine, the same errors, no processes."""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable
from typing import Any

from phalanx.engine import GroupSegment
from phalanx.errors import AbortedError
from phalanx.launch.context import LaunchContext, set_thread_context
from phalanx.launch.outcome import Failure, raise_first, too_slow
from phalanx.launch.rank_process import Report, describe_failure

_POLL_S = 0.05


class RankCancelled(AbortedError):
    """Raised inside a thread rank that still computes after another rank has failed, or when the time is up."""

    def __init__(self, message: str = "this rank was told to stop", **facts: Any) -> None:
        super().__init__(message, **facts)


def run_threads(
    task: tuple[Any, tuple[Any, ...], dict[str, Any]],
    num_ranks: int,
    segment: GroupSegment,
    meeting: str,
    timeout_s: float | None,
    grace_s: float,
) -> list[Any]:
    """Run the task on that many threads.

    Threads can't be killed: one that computes outside Python when another rank fails goes on until it returns to it.

    Raises:
        Exception: As spawn().
    """
    return _Team(task, num_ranks, segment, meeting).run(timeout_s, grace_s)


class _Team:
    def __init__(self, task: tuple[Any, Any, Any], num_ranks: int, segment: GroupSegment, meeting: str) -> None:
        self._task = task
        self._num_ranks = num_ranks
        self._segment = segment
        self._meeting = meeting
        self._results: dict[int, Any] = {}
        self._failures: list[tuple[Failure, BaseException]] = []
        self._changed = threading.Condition()  # guards results and failures
        self._threads = [
            threading.Thread(target=self._be_rank, args=(rank,), name=f"rank {rank}", daemon=True)
            for rank in range(num_ranks)
        ]

    def run(self, timeout_s: float | None, grace_s: float) -> list[Any]:
        for thread in self._threads:
            thread.start()
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        with self._changed:
            while len(self._results) + len(self._failures) < self._num_ranks and not self._failures:
                self._changed.wait(_POLL_S)
                if deadline is not None and time.monotonic() > deadline:
                    missing = [rank for rank in range(self._num_ranks) if rank not in self._results]
                    self._cancel()
                    raise too_slow(missing, self._num_ranks, timeout_s or 0)
        if not self._failures:
            self._join(time.monotonic() + grace_s, lambda: None)
            return [self._results[rank] for rank in range(self._num_ranks)]
        self._join(time.monotonic() + grace_s, self._cancel)
        self._raise()
        raise AssertionError("unreachable")

    def _be_rank(self, rank: int) -> None:
        function, args, kwargs = self._task
        set_thread_context(LaunchContext(rank, self._num_ranks, self._segment.descriptor, True, self._meeting))
        try:
            result = function(*args, **kwargs)
        except BaseException as error:
            report: Report = describe_failure(error)
            self._segment.fail(rank, report.description)
            self._segment.declare_dead(rank, 1)
            with self._changed:
                self._failures.append((Failure(rank, report, 1), error))
                self._changed.notify_all()
            return
        with self._changed:
            self._results[rank] = result
            self._changed.notify_all()

    def _join(self, deadline: float, otherwise: Callable[[], None]) -> None:
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        if any(thread.is_alive() for thread in self._threads):
            otherwise()

    def _cancel(self) -> None:
        self._segment.fail(-1, "the other ranks were told to stop")
        for thread in self._threads:
            if thread.is_alive() and thread.ident is not None:
                ctypes.pythonapi.PyThreadState_SetAsyncExc(
                    ctypes.c_ulong(thread.ident), ctypes.py_object(RankCancelled)
                )

    def _raise(self) -> None:
        """In one process the exception itself can be raised, traceback and all."""
        primary = [pair for pair in self._failures if not pair[0].is_consequence()] or self._failures
        failure, error = primary[0]
        if isinstance(error, (SystemExit, KeyboardInterrupt)):
            raise_first([failure], self._num_ranks)
        error.add_note(f"raised on rank {failure.rank} of {self._num_ranks}")
        raise error
