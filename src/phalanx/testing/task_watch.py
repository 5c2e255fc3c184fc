"""One task of a crew: which ranks still run it, which have failed, and what each was doing when it was ended."""

from __future__ import annotations

import contextlib
import functools
import pickle
import signal
from collections.abc import Sequence
from typing import Any, Protocol

from phalanx.diagnosis import formatting
from phalanx.engine import GroupSegment
from phalanx.launch.rank import Starter
from phalanx.launch.rank_process import Report
from phalanx.launch.supervisor import Supervisor
from phalanx.launch.terminal import TerminalTurns
from phalanx.launch.world_watch import WorldWatch
from phalanx.testing.activity import find_activity
from phalanx.testing.crew_rank import CrewRank
from phalanx.testing.ending import Ending
from phalanx.testing.rank_report import RankReport
from phalanx.testing.shown_stacks import show
from phalanx.testing.stacks import look_at_ranks


class Terminal(Protocol):
    """The terminal on which ranks can be debugged, one at a time."""

    def hand_to(self, member: CrewRank) -> None:
        """Let a rank use it."""

    def take_back(self) -> None:
        """Use it in this process again."""


class TaskWatch(Supervisor[CrewRank]):
    """The policy of a test: it takes each rank's report and returns one ending per rank. The creator closes it."""

    after_failure = (None, signal.SIGKILL)

    def __init__(
        self,
        members: Sequence[CrewRank],
        segment: GroupSegment,
        terminal: Terminal | None,
        *,
        grace_s: float,
        deadline: float,
    ) -> None:
        super().__init__(members, WorldWatch(segment), grace_s=grace_s, deadline=deadline)
        self._terminal = terminal
        self._turns = TerminalTurns(self.pause, self._take_terminal_back)
        self._failed_first: CrewRank | None = None  # it may be debugged after its failure; others are stopped
        self._endings = {member.number: Ending(member.number) for member in members}
        self._stalled: set[int] = set()  # ranks that a fault has stalled for ever
        self._num_finished = 0
        self._is_late = False

    def close(self) -> None:
        """Stop watching the ranks."""
        self.loop.close()
        self.watch.close()

    def run(self, starter: Starter) -> list[Ending]:
        """Wait until every rank has reported or ended, by itself or by a signal."""
        for member in self.ranks:
            member.begin_task()
            self.loop.on(member.connection.fileno(), functools.partial(self._read_messages, member))
        self.listen_to(starter)
        while self._is_at_work():
            self.turn()
        self._end_now()
        return self._collect()

    def abandon(self) -> list[Ending]:
        """End the ranks that still run."""
        self.on_deadline()
        self._end_now()
        return self._collect()

    def _is_at_work(self) -> bool:
        waiting = [member for member in self.unfinished if member.number not in self._stalled]
        return bool(waiting or (self.unfinished and self.shutdown.has_begun))

    def _end_now(self) -> None:
        """End the ranks at once, without a grace time."""
        for member in self.unfinished:
            member.send(signal.SIGKILL)
        while self.unfinished:
            self.turn()

    def _collect(self) -> list[Ending]:
        for member in self.ranks:
            ending = self._endings[member.number]
            ending.out, ending.err = member.files.read()
        return [self._endings[number] for number in sorted(self._endings)]

    def on_deadline(self) -> None:
        """End the ranks that are late."""
        self._is_late = True
        self.end_ranks([signal.SIGKILL])

    def before_signal(self, number: signal.Signals) -> None:
        """Note what the ranks are doing that will be ended."""
        # First their operations: those have time limits too, and the stacks take a while.
        self.watch.look(self.unfinished)
        doing = {member.number: find_activity(self.watch, member.pid) for member in self.unfinished}
        stacks = look_at_ranks({member.number: (member.pid, member.files) for member in self.unfinished})
        for member in self.unfinished:
            ending = self._endings[member.number]
            ending.note(stacks[member.number])
            ending.doing = doing[member.number] or ending.doing
            ending.is_late, ending.was_ended = self._is_late, not self._is_late

    def on_end(self, rank: CrewRank) -> bool:
        """Judge a rank by its report, else by its status."""
        if self.loop.waits_for(rank.connection.fileno()):
            self._read_messages(rank)  # its last messages may not have been read yet
        ending, status = self._endings[rank.number], rank.status or 0
        if rank.is_finished:
            if status > 0:
                ending.status = status  # it crashed after its report
            return True
        is_ended_by_us = bool(rank.sent)
        self._finish(rank, status=None if is_ended_by_us else rank.status)
        if is_ended_by_us:
            return False
        self.declare_dead(rank)
        ending.note(show(rank.files.read_stacks()))
        ending.doing = find_activity(self.watch, rank.pid) or ""
        ending.was_injected = ending.was_injected or rank.may_end(status)
        if not ending.was_injected:
            self.fail(rank, formatting.death(status))
        return False

    def _finish(self, member: CrewRank, *, report: RankReport | None = None, status: int | None = None) -> None:
        member.is_finished = True
        self._num_finished += 1
        ending = self._endings[member.number]
        ending.report, ending.status, ending.when = report, status, self._num_finished
        self._turns.end(member)

    def _read_messages(self, member: CrewRank) -> None:
        try:
            while (received := member.connection.receive_nowait()) is not None:
                self._take(member, received[0])
        except EOFError:
            self.loop.off(member.connection.fileno())

    def _take(self, member: CrewRank, message: tuple[Any, ...] | Report) -> None:
        if isinstance(message, Report):  # it failed between two tasks, or after this one; its exit code follows
            return
        what = message[0]
        if what == "report":
            self._take_report(member, _read(message[1]))
        elif what in ("lost", "stalled"):
            self._endings[member.number].was_injected = True
            self._stalled |= {member.number} if what == "stalled" else set()
        elif what == "gone?":
            with contextlib.suppress(OSError):  # it has died meanwhile
                member.connection.send(("gone", *self._gone()))
        elif what in ("breakpoint", "post mortem"):
            self._debug(member, is_failure=what == "post mortem")
        elif what == "done":
            self._turns.end(member)

    def _take_report(self, member: CrewRank, report: RankReport) -> None:
        if not member.is_finished and not member.sent:
            self._finish(member, report=report)
            if report.outcome == "failed":
                self.fail(
                    member,
                    report.headline,
                    is_consequence=report.is_consequence,
                    disagreement=report.disagreement,
                )

    def _gone(self) -> tuple[frozenset[int], frozenset[int]]:
        """Return the ranks that are dead or stalled, and those that have reported."""
        finished = {member.number for member in self.ranks if member.is_finished}
        done = frozenset(number for number in finished if self._endings[number].report is not None)
        return frozenset(finished - done) | self._stalled, done

    def _debug(self, member: CrewRank, *, is_failure: bool) -> None:
        """Lend the terminal to a rank when it is free: at a breakpoint, or for the first rank that has failed."""
        if is_failure and self._failed_first is not None:
            member.connection.send(("no",))
            return
        if is_failure:
            self._failed_first = member
        self._turns.ask(member, functools.partial(self._lend_terminal, member))

    def _lend_terminal(self, member: CrewRank) -> None:
        if member is self._failed_first:  # at a breakpoint the others continue: the user may step over an operation
            self._signal_others(member, signal.SIGSTOP)
        if self._terminal is not None:
            self._terminal.hand_to(member)

    def _take_terminal_back(self) -> None:
        if self._terminal is not None:
            self._terminal.take_back()
        if self._failed_first is not None and self._failed_first is self._turns.owner:
            self._signal_others(self._failed_first, signal.SIGCONT)
        self.resume()

    def _signal_others(self, member: CrewRank, number: int) -> None:
        for other in self.unfinished:
            if other is not member and other.process is not None:
                other.process.signal(number)


def _read(message: bytes) -> RankReport:
    try:
        report: RankReport = pickle.loads(message)
    except Exception as error:
        return RankReport("failed", headline=f"its report can't be read: {error}", kind=type(error).__name__)
    return report
