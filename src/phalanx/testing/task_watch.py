"""One task of a crew: who is still at it, who has failed, whom to free, whom to end, and when."""

from __future__ import annotations

import pickle
import selectors
import signal
import time
from collections.abc import Sequence
from typing import Any

from phalanx.diagnosis import formatting
from phalanx.testing.ending import Ending
from phalanx.testing.line import close_descriptor
from phalanx.testing.member import Member
from phalanx.testing.rank_report import RankReport
from phalanx.testing.stacks import ask_for_stacks, innermost_place, show_stacks
from phalanx.testing.terminal import Terminal
from phalanx.testing.watched_groups import WatchedGroups


class TaskWatch:
    """The ranks at their task. Whoever makes it closes it."""

    def __init__(
        self,
        members: Sequence[Member],
        watched_groups: WatchedGroups,
        terminal: Terminal,
        grace_s: float,
    ) -> None:
        self._members = {member.rank: member for member in members}
        self._watched_groups = watched_groups
        self._terminal = terminal
        self._owner: int | None = None  # the rank that has the terminal
        self._was_debugged = False  # a rank has been looked at after its failure
        self._wanting: list[int] = []  # ranks that stand at a breakpoint and wait for it
        self._grace_s = grace_s
        self._endings = {rank: Ending(rank) for rank in self._members}
        self._open = set(self._members)  # ranks that have neither reported nor died
        self._stalled: set[int] = set()  # ranks that a fault holds up for good
        self._num_ended = 0
        self._free_at: float | None = None  # when ranks that did not notice a failure are ended
        self._selector = selectors.DefaultSelector()
        for member in members:
            self._selector.register(member.line.side, selectors.EVENT_READ, (self._read_notices, member))
            self._selector.register(member.line.channel, selectors.EVENT_READ, (self._take_report, member))
            self._selector.register(member.watch, selectors.EVENT_READ, (self._see_end, member))

    def close(self) -> None:
        """Look no more."""
        self._selector.close()
        self._watched_groups.close()

    def run(self, deadline: float) -> list[Ending]:
        """Wait until every rank has ended, by itself or not."""
        while self._open - self._stalled or (self._open and self._free_at is not None):
            start, is_debugged = time.monotonic(), self._owner is not None
            until = deadline if self._free_at is None else min(deadline, self._free_at)
            for key, _ in self._selector.select(None if is_debugged else max(0.0, until - start)):
                serve, member = key.data
                deadline += serve(member) or 0.0
            now = time.monotonic()
            if is_debugged:
                deadline += now - start  # a person takes the time
            elif now >= deadline:
                self._end_open(is_late=True)
            elif self._free_at is not None and now >= self._free_at:
                self._end_open(is_late=False)
        self._end_stalled()
        return self._collect()

    def abandon(self) -> list[Ending]:
        """End what still runs."""
        self._end_open(is_late=True)
        return self._collect()

    def _collect(self) -> list[Ending]:
        for rank, ending in self._endings.items():
            ending.out, ending.err = self._members[rank].files.read()
        return [self._endings[rank] for rank in sorted(self._endings)]

    def _read_notices(self, member: Member) -> float:
        """Take what a rank has to say besides; return for how long the clock stood still."""
        spent = 0.0
        while True:
            try:
                notice = member.line.receive_notice(block=False)
            except BlockingIOError:
                return spent
            if notice is None:
                self._forget(member.line.side)
                return spent
            what, descriptor = notice
            if what[0] == "group" and descriptor is not None:
                self._watched_groups.add(descriptor)
            elif what[0] == "lost":
                self._endings[member.rank].was_planned = True
            elif what[0] == "stalled":
                self._endings[member.rank].was_planned = True
                self._stalled.add(member.rank)
            elif what[0] == "gone?":
                member.line.notify("gone", *self._gone())
            elif what[0] == "breakpoint":
                self._wanting.append(member.rank)
                self._pass_terminal()
            elif what[0] == "post mortem":
                start = time.monotonic()
                self._debug_failure(member)
                spent += time.monotonic() - start
            close_descriptor(descriptor)

    def _read_report(self, member: Member) -> bool:
        """Take what has come of a report; return whether there may be more."""
        try:
            message = member.inbox.read(member.line.channel)
        except BlockingIOError:
            return False
        except (EOFError, ConnectionError):
            self._forget(member.line.channel)
            return False
        if message is None:
            return True
        self._read_notices(member)
        report = _read(message)
        self._end(member, report=report)
        if report.outcome == "failed":
            self._free_others(member.rank, report.headline)
        return False

    def _gone(self) -> tuple[frozenset[int], frozenset[int]]:
        """Return the ranks that are dead, or as good as, and those that have reported."""
        ended = self._endings.keys() - self._open
        done = frozenset(rank for rank in ended if self._endings[rank].report is not None)
        return frozenset(ended - done) | self._stalled, done

    def _pass_terminal(self) -> None:
        """Let the next rank have the terminal. The others go on: it may step over an operation."""
        if self._owner is None and self._wanting:
            self._owner = self._wanting.pop(0)
            self._terminal.lend(self._members[self._owner])

    def _debug_failure(self, member: Member) -> None:
        """Let the first rank that has failed have the terminal, and park the others meanwhile."""
        if self._was_debugged:
            member.line.notify("no")
            return
        self._was_debugged = True
        self._signal_others(member.rank, signal.SIGSTOP)
        self._terminal.lend(member)
        self._terminal.wait(member)
        self._terminal.take_back()
        self._signal_others(member.rank, signal.SIGCONT)

    def _take_report(self, member: Member) -> None:
        self._read_report(member)

    def _see_end(self, member: Member) -> None:
        self._forget(member.watch)
        self._read_notices(member)
        status = member.reap()
        while member.rank in self._open and self._read_report(member):
            pass  # what it said last was still under way
        if member.rank in self._open:
            self._watched_groups.declare_dead(member.pid, status or 0)
            self._end(member, status=status)
            ending = self._endings[member.rank]
            ending.doing = self._watched_groups.doing(member.pid)
            ending.stacks = show_stacks(member.files.read_stacks().splitlines())
            ending.was_planned = ending.was_planned or member.may_end(status or 0)
            if not ending.was_planned:
                self._free_others(member.rank, formatting.death(status or 0))
        elif (status or 0) > 0:
            self._endings[member.rank].status = status  # it crashed on its way out

    def _end(self, member: Member, *, report: RankReport | None = None, status: int | None = None) -> None:
        self._open.discard(member.rank)
        self._num_ended += 1
        ending = self._endings[member.rank]
        ending.report, ending.status, ending.when = report, status, self._num_ended
        if member.rank == self._owner:
            self._terminal.take_back()
            self._owner = None
            self._pass_terminal()

    def _free_others(self, rank: int, why: str) -> None:
        """Let ranks that wait in an operation raise now; those that don't get a grace."""
        self._watched_groups.fail(rank, self._members[rank].pid, why)
        if self._free_at is None:
            self._free_at = time.monotonic() + self._grace_s

    def _end_open(self, *, is_late: bool) -> None:
        ranks = sorted(self._open)
        stacks = ask_for_stacks({rank: (self._members[rank].pid, self._members[rank].files) for rank in ranks})
        for rank in ranks:
            ending, member = self._endings[rank], self._members[rank]
            ending.stacks = stacks[rank]
            place = innermost_place(ending.stacks)
            ending.doing = self._watched_groups.doing(member.pid) or (f"at {place}" if place else "")
            ending.is_late, ending.was_ended = is_late, not is_late
            member.signal(signal.SIGKILL)
        for rank in ranks:
            self._forget(self._members[rank].watch)
            self._members[rank].reap()
            self._end(self._members[rank])
        self._free_at = None

    def _end_stalled(self) -> None:
        for rank in sorted(self._open):
            self._members[rank].signal(signal.SIGKILL)
            self._members[rank].reap()
            self._end(self._members[rank])

    def _signal_others(self, rank: int, number: int) -> None:
        for other in self._open - {rank}:
            self._members[other].signal(number)

    def _is_registered(self, what: Any) -> bool:
        return self._selector.get_map().get(what) is not None

    def _forget(self, what: Any) -> None:
        if self._is_registered(what):
            self._selector.unregister(what)


def _read(message: bytes) -> RankReport:
    try:
        report: RankReport = pickle.loads(message)
    except Exception as error:
        return RankReport("failed", headline=f"its report can't be read: {error}", kind=type(error).__name__)
    return report
