"""Several ranks at one task: wait for all, free the others when one fails, end those that are late.

Whatever happens to a rank, the crew comes back with one ending per rank, within the time limit and a grace.
"""

from __future__ import annotations

import pickle
import selectors
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from phalanx.diagnosis import words
from phalanx.engine import GroupSegment
from phalanx.testing.line import close_descriptor
from phalanx.testing.member import Member
from phalanx.testing.rank_report import RankReport
from phalanx.testing.sightings import Sightings
from phalanx.testing.stacks import ask_for_stacks, innermost_place, show_stacks

_CLEAN = ("passed", "skipped", "xfailed", "rejected")
# A rank that was told of a failure and sits in an operation returns at once; one that computes gets this long.
_EXIT_PATIENCE_S = 5.0


class Terminal(Protocol):
    """Where ranks can be debugged, one at a time."""

    def lend(self, member: Member) -> None:
        """Let a rank have it."""

    def wait(self, member: Member) -> None:
        """Wait until the rank is done with it, or gone."""

    def take_back(self) -> None:
        """Use it again."""


@dataclass
class Ending:
    """How a task ended on one rank.

    Attributes:
        rank: Its number.
        when: Its place in the order of endings.
        report: What it said; None when it could not.
        status: Exit code or 256 + signal of a rank that died.
        is_late: It was ended because the time was up.
        was_ended: It was ended because another rank had failed.
        was_planned: Its loss is a fault that the test asked for.
        doing: What it was doing when it was ended, as far as the journal or its stack tells.
        stacks: Where its threads stood then.
        out: What it printed.
        err: And to standard error.
    """

    rank: int
    when: int = 0
    report: RankReport | None = None
    status: int | None = None
    is_late: bool = False
    was_ended: bool = False
    was_planned: bool = False
    doing: str = ""
    stacks: str = ""
    out: str = ""
    err: str = ""

    def is_failure(self) -> bool:
        """Tell whether the test can't have passed because of this rank."""
        if self.report is not None:
            return self.report.outcome == "failed" or self.status is not None
        return not self.was_planned

    def is_consequence(self) -> bool:
        """Tell whether it failed only because another rank had."""
        return self.was_ended or (self.report is not None and bool(self.report.waited_in))

    def is_clean(self, *, also_failed: bool) -> bool:
        """Tell whether the rank can run another task; `also_failed` when it has only raised."""
        if self.report is None or self.report.left_behind:
            return False
        return self.report.outcome in _CLEAN or (also_failed and self.report.outcome == "failed")


class TaskInterrupted(Exception):
    """A task was ended from outside.

    Attributes:
        endings: What the ranks were doing.
        reason: What was raised in this process.
        seconds: How long the task had run.
    """

    def __init__(self, endings: list[Ending], reason: BaseException, seconds: float) -> None:
        super().__init__(str(reason))
        self.endings = endings
        self.reason = reason
        self.seconds = seconds


class Crew:
    """Ranks that are ready for a task, or at one. Not for several threads.

    Args:
        members: The ranks, in order.
        terminal: What ranks that are debugged share.
        on_close: Called at the end.
    """

    def __init__(
        self, members: Sequence[Member], terminal: Terminal, on_close: Callable[[], None] = lambda: None
    ) -> None:
        self.members = list(members)
        self._terminal = terminal
        self._on_close = on_close

    def send(self, task: bytes, segment: GroupSegment) -> None:
        """Give every rank a task, and the memory of its world.

        Raises:
            OSError: A rank is gone.
        """
        for member in self.members:
            member.files.clear()
            member.line.notify("task", len(self.members), descriptor=segment.descriptor)
            member.line.send(task)

    def wait(self, segment: GroupSegment, *, timeout_s: float, grace_s: float) -> list[Ending]:
        """Wait until the task is done on every rank, or can't be.

        Raises:
            TaskInterrupted: Somebody has ended the test from outside.
        """
        watch = _Watch(self.members, Sightings(segment), self._terminal, grace_s)
        start = time.monotonic()
        try:
            return watch.run(start + timeout_s)
        except (Exception, KeyboardInterrupt, SystemExit):
            raise
        except BaseException as reason:  # pytest's own, such as the alarm of pytest-timeout
            raise TaskInterrupted(watch.abandon(), reason, time.monotonic() - start) from reason
        finally:
            watch.close()

    def close(self) -> None:
        """End all ranks."""
        for member in self.members:
            member.signal(signal.SIGKILL)
        for member in self.members:
            member.close()
        self._on_close()


class _Watch:
    """One task of a crew."""

    def __init__(
        self,
        members: Sequence[Member],
        sightings: Sightings,
        terminal: Terminal,
        grace_s: float,
    ) -> None:
        self._members = {member.rank: member for member in members}
        self._sightings = sightings
        self._terminal = terminal
        self._owner: int | None = None  # the rank that has the terminal
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
        self._selector.close()
        self._sightings.close()

    def run(self, deadline: float) -> list[Ending]:
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
                self._sightings.add(descriptor)
            elif what[0] == "lost":
                self._endings[member.rank].was_planned = True
            elif what[0] == "stalled":
                self._endings[member.rank].was_planned = True
                self._stalled.add(member.rank)
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
        report: RankReport = pickle.loads(message)
        self._end(member, report=report)
        if report.outcome == "failed":
            self._free_others(member.rank, report.headline)
        return False

    def _pass_terminal(self) -> None:
        """Let the next rank have the terminal. The others go on: it may step over an operation."""
        if self._owner is None and self._wanting:
            self._owner = self._wanting.pop(0)
            self._terminal.lend(self._members[self._owner])

    def _debug_failure(self, member: Member) -> None:
        """Let a rank that has failed have the terminal, and park the others meanwhile."""
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
            self._sightings.declare_dead(member.pid, status or 0)
            self._end(member, status=status)
            ending = self._endings[member.rank]
            ending.doing = self._sightings.doing(member.pid)
            ending.stacks = show_stacks(member.files.read_stacks().splitlines())
            ending.was_planned = ending.was_planned or member.may_end(status or 0)
            if not ending.was_planned:
                self._free_others(member.rank, words.death(status or 0))
        elif status:
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
        self._sightings.fail(rank, self._members[rank].pid, why)
        if self._free_at is None:
            self._free_at = time.monotonic() + self._grace_s

    def _end_open(self, *, is_late: bool) -> None:
        ranks = sorted(self._open)
        stacks = ask_for_stacks({rank: (self._members[rank].pid, self._members[rank].files) for rank in ranks})
        for rank in ranks:
            ending, member = self._endings[rank], self._members[rank]
            ending.stacks = stacks[rank]
            place = innermost_place(ending.stacks)
            ending.doing = self._sightings.doing(member.pid) or (f"at {place}" if place else "")
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


def wait_for_exit(members: Sequence[Member]) -> list[Member]:
    """Wait until ranks that have nothing more to do have ended; return those that had to be killed."""
    stuck = []
    deadline = time.monotonic() + _EXIT_PATIENCE_S
    for member in members:
        if member.status is not None:
            continue
        selector = selectors.DefaultSelector()
        selector.register(member.watch, selectors.EVENT_READ)
        if not selector.select(max(0.0, deadline - time.monotonic())):
            stuck.append(member)
            member.signal(signal.SIGKILL)
        selector.close()
        member.reap()
    return stuck
