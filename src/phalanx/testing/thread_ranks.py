"""Ranks as threads of this process: nothing is forked, all objects are shared, a crash takes everything with it.

Threads can't be killed. One that does not return to Python when its time is up is left alone, and named.
"""

from __future__ import annotations

import contextlib
import ctypes
import signal
import sys
import threading
import time
from collections.abc import Callable

from phalanx.engine import GroupSegment
from phalanx.launch.context import set_thread_context
from phalanx.launch.rendezvous import Rendezvous
from phalanx.launch.threads import RankCancelled
from phalanx.settings import read_settings
from phalanx.testing.crew import TaskInterrupted
from phalanx.testing.ending import Ending
from phalanx.testing.faults import RankLost
from phalanx.testing.forked_ranks import new_world
from phalanx.testing.meetings import name_meeting
from phalanx.testing.place import Place, die_in_groups, disarm_faults, leave_groups
from phalanx.testing.rank_report import RankReport, report_failure
from phalanx.testing.stacks import innermost_place, show_frame
from phalanx.testing.thread_output import ThreadOutput
from phalanx.testing.watched_groups import describe


def run_threaded(
    run: Callable[[ThreadOutput], RankReport],
    num_ranks: int,
    *,
    timeout_s: float,
    redirect: bool,
    rendezvous: Rendezvous,
) -> list[Ending]:
    """Run the task on that many threads and wait for their end."""
    with new_world(num_ranks) as segment:
        team = _Team(run, num_ranks, segment, name_meeting(), rendezvous)
        with team.output.installed() if redirect else contextlib.nullcontext():
            return team.run(timeout_s)


class _Team:
    def __init__(
        self,
        run: Callable[[ThreadOutput], RankReport],
        num_ranks: int,
        segment: GroupSegment,
        meeting: str,
        rendezvous: Rendezvous,
    ) -> None:
        self._run = run
        self._num_ranks = num_ranks
        self._segment = segment
        self._meeting = meeting
        self._rendezvous = rendezvous
        self.output = ThreadOutput()
        self._changed = threading.Condition()  # guards the endings and the number of ended
        self._endings = [Ending(rank) for rank in range(num_ranks)]
        self._ended: list[int] = []
        self._stalled: set[int] = set()  # ranks that a fault holds up for good
        self._threads = [
            threading.Thread(target=self._be_rank, args=(rank,), name=f"rank {rank}", daemon=True)
            for rank in range(num_ranks)
        ]

    def run(self, timeout_s: float) -> list[Ending]:
        start = time.monotonic()
        for thread in self._threads:
            thread.start()
        try:
            self._wait(start + timeout_s)
        except BaseException as reason:  # Ctrl-C, or an alarm such as pytest-timeout's
            self._cancel([rank for rank in range(self._num_ranks) if rank not in self._ended], True)
            if isinstance(reason, (Exception, KeyboardInterrupt, SystemExit)):
                raise
            raise TaskInterrupted(self._endings, reason, time.monotonic() - start) from reason
        for ending in self._endings:
            ending.out, ending.err = self.output.read(ending.rank)
        return self._endings

    def _wait(self, deadline: float) -> None:
        timeout_s = deadline - time.monotonic()
        with self._changed:
            self._changed.wait_for(lambda: self._is_over() or self._has_failed(), timeout_s)
            if self._has_failed() and not self._is_over():
                grace_s = min(read_settings().grace_s, max(0.0, deadline - time.monotonic()))
                self._changed.wait_for(self._is_over, grace_s)
            is_late = time.monotonic() >= deadline and not self._has_failed()
            late = [rank for rank in range(self._num_ranks) if rank not in self._ended]
        if late:
            self._cancel(late, is_late)
        for thread in self._threads:
            thread.join(0 if late else 1)

    def _is_over(self) -> bool:
        return len({*self._ended, *self._stalled}) == self._num_ranks

    def _has_failed(self) -> bool:
        return any(ending.report is not None and ending.report.outcome == "failed" for ending in self._endings)

    def _be_rank(self, rank: int) -> None:
        place = Place(rank, self._num_ranks, self._meeting, self._rendezvous)
        context = place.context(self._segment.descriptor, is_thread=True)
        context.tell = lambda what: self._plan_loss(rank, what)
        context.ask_gone = self._gone
        set_thread_context(context)
        self.output.join(rank)
        report: RankReport | None = None
        try:
            report = self._run(self.output)
            if report.outcome == "failed":
                self._segment.fail(rank, report.headline)  # it may not even have joined the world yet
            else:
                leave_groups()
        except RankLost:
            die_in_groups(256 + signal.SIGKILL)
            self._segment.declare_dead(rank, 256 + signal.SIGKILL)
        except RankCancelled:
            pass  # it came after the test, on the way out
        except Exception as error:
            report = report_failure(error)
        finally:
            disarm_faults()
            set_thread_context(None)
        with self._changed:
            if rank not in self._ended:
                self._ended.append(rank)
                self._endings[rank].report, self._endings[rank].when = report, len(self._ended)
                self._changed.notify_all()

    def _gone(self) -> tuple[frozenset[int], frozenset[int]]:
        with self._changed:
            done = frozenset(rank for rank in self._ended if self._endings[rank].report is not None)
            return frozenset({*self._ended, *self._stalled} - done), done

    def _plan_loss(self, rank: int, what: str) -> None:
        with self._changed:
            self._endings[rank].was_planned = True
            if what == "stalled":
                self._stalled.add(rank)
                self._changed.notify_all()

    def _cancel(self, ranks: list[int], is_late: bool) -> None:
        """Note where late ranks stand, then have them raise as soon as they are back in Python."""
        frames = sys._current_frames()
        rows = self._segment.snapshot()
        with self._changed:
            for rank in ranks:
                ending, thread = self._endings[rank], self._threads[rank]
                frame = frames.get(thread.ident or 0)
                ending.stacks = show_frame(frame) if frame is not None else ""
                place = innermost_place(ending.stacks)
                ending.doing = describe(rows[rank]) or (f"at {place}" if place else "")
                ending.is_late, ending.was_ended = is_late, not is_late
                self._ended.append(rank)
                ending.when = len(self._ended)
        self._segment.fail(-1, "the time of the test was up" if is_late else "another rank failed")
        for rank in ranks:
            ctypes.pythonapi.PyThreadState_SetAsyncExc(
                ctypes.c_ulong(self._threads[rank].ident or 0), ctypes.py_object(RankCancelled)
            )
        deadline = time.monotonic() + read_settings().grace_s
        for rank in ranks:
            self._threads[rank].join(max(0.0, deadline - time.monotonic()))
            if self._threads[rank].is_alive():
                self._endings[rank].doing += "; its thread could not be ended and goes on"
