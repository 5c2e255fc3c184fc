"""Run ranks as threads of this process: nothing is forked, all objects are shared, and a crash ends the whole process.

Threads can't be killed. A thread that does not return to Python when its time is up continues, and the report says so.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable

from phalanx.engine import GroupSegment
from phalanx.launch.context import Placement, set_thread_context
from phalanx.launch.rendezvous import Rendezvous
from phalanx.launch.threads import RankCancelled, ThreadTeam
from phalanx.launch.world import name_meeting, open_world
from phalanx.launch.world_watch import WorldWatch
from phalanx.settings import read_settings
from phalanx.testing.activity import find_activity, waiting_of
from phalanx.testing.crew import TaskInterrupted
from phalanx.testing.ending import Ending
from phalanx.testing.faults import RankLost
from phalanx.testing.rank_report import RankReport, Waiting, report_failure
from phalanx.testing.stacks import show_frame
from phalanx.testing.taking_part import die_in_groups, disarm_faults, leave_groups
from phalanx.testing.thread_output import ThreadOutput


def run_threaded(
    run: Callable[[ThreadOutput], RankReport],
    num_ranks: int,
    *,
    timeout_s: float,
    redirect: bool,
    rendezvous: Rendezvous,
) -> list[Ending]:
    """Run the task on that many threads and wait until they have ended."""
    with open_world(num_ranks) as segment:
        threads = _Threads(run, num_ranks, segment, name_meeting(), rendezvous)
        with threads.output.installed() if redirect else contextlib.nullcontext():
            return threads.run(timeout_s)


class _Threads:
    """The ranks of one task."""

    def __init__(
        self,
        run: Callable[[ThreadOutput], RankReport],
        num_ranks: int,
        segment: GroupSegment,
        meeting: str,
        rendezvous: Rendezvous,
    ) -> None:
        self._run = run
        self._segment = segment
        self._meeting = meeting
        self._rendezvous = rendezvous
        self.output = ThreadOutput()
        self._endings = [Ending(rank) for rank in range(num_ranks)]
        self._team = ThreadTeam(num_ranks, segment, self._be_rank)

    def run(self, timeout_s: float) -> list[Ending]:
        start = time.monotonic()
        try:
            is_late = self._team.run(timeout_s, read_settings().grace_s)
        except BaseException as reason:  # Ctrl-C, or an alarm such as pytest-timeout's
            self._cancel(self._team.unfinished(), True)
            if isinstance(reason, (Exception, KeyboardInterrupt, SystemExit)):
                raise
            raise TaskInterrupted(self._endings, reason, time.monotonic() - start) from reason
        late = self._team.unfinished()
        if late:
            self._cancel(late, is_late)
        for ending in self._endings:
            ending.out, ending.err = self.output.read(ending.rank)
        return self._endings

    def _be_rank(self, rank: int) -> bool:
        placement = Placement(rank, len(self._endings), self._meeting, self._rendezvous)
        context = placement.context(self._segment.descriptor, is_thread=True)
        context.tell = lambda what: self._note_injected(rank, what)
        context.ask_gone = self._gone
        context.started_by = "pytest"
        set_thread_context(context)
        self.output.join(rank)
        report: RankReport | None = None
        try:
            report = self._run(self.output)
            if report.outcome == "failed":
                self._segment.fail(rank, report.headline)  # works even if the rank has not joined the world yet
            else:
                leave_groups()
        except RankLost:
            die_in_groups(256 + signal.SIGKILL)
            self._segment.declare_dead(rank, 256 + signal.SIGKILL)
        except RankCancelled:
            pass  # it was raised after the test, while the thread ended
        except Exception as error:
            report = report_failure(error)
        finally:
            disarm_faults()
            set_thread_context(None)
        with self._team.changed:
            if rank not in self._team.finished:
                self._endings[rank].report, self._endings[rank].when = report, len(self._team.finished) + 1
        return report is None or report.outcome != "failed"

    def _gone(self) -> tuple[frozenset[int], frozenset[int]]:
        with self._team.changed:
            finished = self._team.finished
            done = frozenset(rank for rank in finished if self._endings[rank].report is not None)
            return frozenset({*finished, *self._team.stalled} - done), done

    def _note_injected(self, rank: int, what: str) -> None:
        with self._team.changed:
            self._endings[rank].was_injected = True
            if what == "stalled":
                self._team.stalled.add(rank)
                self._team.changed.notify_all()

    def _activities(self, ranks: Iterable[int]) -> dict[int, Waiting | None]:
        """Return the operations in which ranks wait."""
        rows = self._segment.snapshot()
        threads = {rank: self._team.threads[rank].native_id or 0 for rank in ranks}
        with contextlib.closing(WorldWatch(self._segment)) as watch:
            watch.observer.look([os.getpid()])
            return {
                rank: waiting_of(rows[rank]) or find_activity(watch, os.getpid(), thread)
                for rank, thread in threads.items()
            }

    def _cancel(self, ranks: list[int], is_late: bool) -> None:
        """Note what late ranks are doing, then make them stop."""
        frames = sys._current_frames()
        doing = self._activities(ranks)
        with self._team.changed:
            for rank in ranks:
                ending = self._endings[rank]
                frame = frames.get(self._team.threads[rank].ident or 0)
                if frame is not None:
                    ending.note(show_frame(frame))
                ending.doing = doing[rank] or ending.doing
                ending.is_late, ending.was_ended = is_late, not is_late
                self._team.finished.append(rank)
                ending.when = len(self._team.finished)
        why = "the time of the test was up" if is_late else "another rank failed"
        for rank in self._team.cancel(ranks, why, read_settings().grace_s):
            self._endings[rank].goes_on = True
