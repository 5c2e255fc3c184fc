"""Run ranks as threads of the calling process: the same engine, the same errors, no processes.

Threads can't be killed. If a rank is in native code when another rank fails, it continues until it returns to Python.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable
from types import FrameType
from typing import Any

from phalanx.diagnosis.findings import place_of
from phalanx.diagnosis.observation import Observation, describe
from phalanx.diagnosis.processes import children_of_thread
from phalanx.diagnosis.retold_errors import see_through
from phalanx.diagnosis.stacks import Frame, answer_in_children_too, is_users
from phalanx.diagnosis.views import JobView
from phalanx.engine import GroupSegment
from phalanx.errors import AbortedError
from phalanx.launch.context import Placement, set_thread_context
from phalanx.launch.outcome import SpawnedRank, describe_place, describe_unfinished, raise_first, too_slow
from phalanx.launch.rank import first_culprit, settle_disagreements
from phalanx.launch.rank_process import describe_failure

# What most ranks import. A time limit or the failure of another rank would interrupt the import. Then torch can't
# be imported again, or the thread keeps Python's import lock, so that no other thread can import anything.
_IMPORTED_FIRST = ("torch", "phalanx.groups.connect")


class RankCancelled(AbortedError):
    """Raised in a rank that is a thread if it still runs after another rank has failed, or when the time is up."""

    def __init__(self, message: str = "this rank was told to stop", **facts: Any) -> None:
        super().__init__(message, **facts)


class ThreadTeam:
    """Threads that are the ranks of one world: it starts them, waits for them, and tells them to stop.

    Args:
        num_ranks: How many ranks.
        segment: The memory of their world.
        run: The function of each rank; it gets the rank and returns whether it succeeded.

    Attributes:
        changed: Guards the other attributes.
        finished: The ranks that are done, or that the team no longer waits for, in that order.
        stalled: Ranks that will never be done.
        threads: The threads, in rank order.
    """

    def __init__(self, num_ranks: int, segment: GroupSegment, run: Callable[[int], bool]) -> None:
        self._segment = segment
        self._has_failed = False
        self.changed = threading.Condition()
        self.finished: list[int] = []
        self.stalled: set[int] = set()
        self.threads = [
            # A thread drops its arguments when it ends, so the owner of `run` and of this team is freed at once.
            threading.Thread(target=self._be_rank, args=(rank, run), name=f"rank {rank}", daemon=True)
            for rank in range(num_ranks)
        ]

    def run(self, timeout_s: float | None, grace_s: float) -> bool:
        """Start the threads and wait until all are done; if one fails, wait only `grace_s` for the others.

        Returns:
            Whether the time is up, and no rank has failed.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        answer_in_children_too()  # the workers of a DataLoader, and these threads before they make a group
        for thread in self.threads:
            thread.start()
        with self.changed:
            self.changed.wait_for(lambda: self._is_over() or self._has_failed, timeout_s)
            if self._has_failed:
                left_s = grace_s if deadline is None else max(0.0, deadline - time.monotonic())
                self.changed.wait_for(self._is_over, min(grace_s, left_s))
            is_late = not self._has_failed and not self._is_over()
        if not self.unfinished():
            self._join(range(len(self.threads)), grace_s)
        return is_late

    def unfinished(self) -> list[int]:
        """Return the ranks that are not done."""
        with self.changed:
            return [rank for rank in range(len(self.threads)) if rank not in self.finished]

    def cancel(self, ranks: Iterable[int], why: str, grace_s: float = 0.0) -> list[int]:
        """Make ranks raise as soon as they are back in Python; return those that still run after `grace_s`."""
        self._segment.fail(-1, why)
        for rank in ranks:
            if self.threads[rank].is_alive():
                ident = ctypes.c_ulong(self.threads[rank].ident or 0)
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ident, ctypes.py_object(RankCancelled))
        return self._join(ranks, grace_s)

    def _be_rank(self, rank: int, run: Callable[[int], bool]) -> None:
        self._segment.launched(rank, os.getpid(), threading.get_native_id())
        is_well = run(rank)
        with self.changed:
            self._has_failed = self._has_failed or not is_well
            if rank not in self.finished:
                self.finished.append(rank)
            self.changed.notify_all()

    def places_of(self, ranks: Iterable[int]) -> dict[int, str]:
        """Say which line of the program each of these ranks is at, and the processes that it has started."""
        running = sys._current_frames()
        stacks = {rank: running.get(self.threads[rank].ident or 0) for rank in ranks}
        own = {rank: _place_in(top) for rank, top in stacks.items() if top is not None}
        children = {rank: children_of_thread("self", self.threads[rank].native_id or 0) for rank in own}
        pids = [pid for some in children.values() for pid in some]
        seen = describe([], pids, JobView(), with_stacks=True) if pids else None
        return {
            rank: describe_place(place, _places_below(seen, children[rank]) if seen is not None else {})
            for rank, place in own.items()
        }

    def _is_over(self) -> bool:
        return len({*self.finished, *self.stalled}) == len(self.threads)

    def _join(self, ranks: Iterable[int], grace_s: float) -> list[int]:
        deadline = time.monotonic() + grace_s
        for rank in ranks:
            if self.threads[rank].ident is not None:  # otherwise it was never started
                self.threads[rank].join(max(0.0, deadline - time.monotonic()))
        return [rank for rank in ranks if self.threads[rank].is_alive()]


def _place_in(top: FrameType) -> str:
    """Return the innermost line of the user's own code on a stack; the innermost line of all if there is none."""
    frames = [
        Frame(frame.f_code.co_filename, number, frame.f_code.co_name) for frame, number in traceback.walk_stack(top)
    ]
    return str(next((frame for frame in frames if is_users(frame.file)), frames[0]))


def _places_below(seen: Observation, children: Iterable[int]) -> dict[str, list[int]]:
    """Return the lines that these processes, and those that they have started, are at, with their process ids."""
    places: dict[str, list[int]] = {}
    for process in seen.processes:
        if {process.pid, process.rank_pid} & set(children) and (place := place_of(process)):
            places.setdefault(place, []).append(process.pid)
    return places


def _run_team(team: ThreadTeam, timeout_s: float | None, grace_s: float) -> bool:
    try:
        return team.run(timeout_s, grace_s)
    except BaseException as stop:  # such as Ctrl-C
        late = team.unfinished()
        if isinstance(stop, KeyboardInterrupt):
            stop.add_note(f"spawn: interrupted; {describe_unfinished(late, len(team.threads), team.places_of(late))}")
        team.cancel(late, "the ranks were told to stop")
        raise


def run_threads(
    task: tuple[Any, tuple[Any, ...], dict[str, Any]],
    num_ranks: int,
    segment: GroupSegment,
    meeting: str,
    timeout_s: float | None,
    grace_s: float,
) -> list[Any]:
    """Run the task on that many threads.

    Raises:
        Exception: As spawn().
    """
    for name in _IMPORTED_FIRST:
        importlib.import_module(name)
    function, args, kwargs = task
    results: dict[int, Any] = {}
    ranks = [SpawnedRank(rank) for rank in range(num_ranks)]
    errors: dict[int, BaseException] = {}

    def be_rank(rank: int) -> bool:
        context = Placement(rank, num_ranks, meeting).context(segment.descriptor, is_thread=True)
        context.started_by = "spawn"
        set_thread_context(context)
        try:
            results[rank] = function(*args, **kwargs)
        except BaseException as error:
            report = ranks[rank].report = describe_failure(error)
            ranks[rank].fail(is_consequence=report.is_consequence, disagreement=report.disagreement)
            segment.fail(rank, report.description)
            segment.declare_dead(rank, 1)
            errors[rank] = see_through(error)
            return False
        return True

    team = ThreadTeam(num_ranks, segment, be_rank)
    is_late = _run_team(team, timeout_s, grace_s)
    late = team.unfinished()
    places = team.places_of(late) if is_late else {}
    if late:
        team.cancel(late, "the other ranks were told to stop")
    if is_late:
        raise too_slow(late, num_ranks, timeout_s or 0, places)
    settle_disagreements(ranks)
    culprit = first_culprit(ranks)
    if culprit is not None:
        error = errors[culprit.number]
        if isinstance(error, (SystemExit, KeyboardInterrupt)):
            raise_first(ranks)
        error.add_note(f"raised on rank {culprit.number} of {num_ranks}")
        raise error  # threads share a process, so no copy without a traceback is raised
    return [results[rank] for rank in range(num_ranks)]
