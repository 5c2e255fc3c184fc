"""Ranks that stay for all tests of a class, with one process group; and what connects them with the main process.

Tests are sent by their ids. A rank answers each with a report; one that has failed ends, and with it the others.
"""

from __future__ import annotations

import multiprocessing
import os
import socket
import tempfile
import unittest
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.reduction import DupFd
from pathlib import Path
from typing import Any

from phalanx.engine import GroupSegment, create_group_segment
from phalanx.launch.context import set_process_context
from phalanx.launch.rendezvous import NOWHERE
from phalanx.launch.spawn import WORLD_NAME
from phalanx.settings import read_settings
from phalanx.testing.crew import Crew, wait_for_exit
from phalanx.testing.ending import Ending
from phalanx.testing.forked_ranks import fork_crew
from phalanx.testing.line import Line, close_descriptor, open_line
from phalanx.testing.meetings import name_meeting
from phalanx.testing.member import Member
from phalanx.testing.place import Place, leave_groups, packed
from phalanx.testing.rank_report import RankReport
from phalanx.testing.terminal import NoTerminal
from phalanx.testing.unittest.cuda_use import must_start_afresh
from phalanx.testing.unittest.own_stacks import report_test_failure
from phalanx.testing.unittest.rank_process import AdoptedMember

# What a rank does: `loop(rank, number of ranks, file for the rendezvous, queue of tasks, queue of results)`.
Loop = Callable[[int, int, str, "TaskQueue", "CompletionQueue"], None]


class TaskQueue:
    """A rank's end of the line, as the queue from which it gets tests."""

    def __init__(self, line: Line) -> None:
        self._line = line
        self._memories: list[int] = []

    def keep(self, memory: int) -> None:
        """Remember the memory of a group: whoever watches a test must hear of it each time."""
        self._memories.append(os.dup(memory))

    def get(self) -> str | None:
        """Wait for the id of a test; None when there are no more."""
        notice = self._line.receive_notice()
        if notice is None:
            return None
        close_descriptor(notice[1])
        task = self._line.receive()
        self._forget_left_groups()
        for memory in self._memories:
            self._line.notify("group", descriptor=memory)
        return None if task is None else task.decode()

    def _forget_left_groups(self) -> None:
        for memory in list(self._memories):
            rows = GroupSegment.attach(memory).snapshot()
            if not any(row["pid"] == os.getpid() and row["state"] == "present" for row in rows):
                self._memories.remove(memory)
                os.close(memory)


class CompletionQueue:
    """The other direction."""

    def __init__(self, line: Line) -> None:
        self._line = line

    def put(self, result: str | BaseException) -> None:
        """Send what became of a test: its id, a SkipTest, or what it raised."""
        if isinstance(result, unittest.SkipTest):
            report = RankReport("skipped", headline=str(result))
        elif isinstance(result, BaseException):
            report = report_test_failure(result)
        else:
            report = RankReport("passed")
        self._line.send(packed(report))


class ContinuousRanks:
    """The ranks of one class. Whoever makes them closes them."""

    def __init__(self, loop: Loop, num_ranks: int) -> None:
        self._loop = loop
        self._num_ranks = num_ranks
        self._meeting = name_meeting()
        with tempfile.NamedTemporaryFile(delete=False) as file:
            self.rendezvous = file.name
        self._segment: GroupSegment = create_group_segment(WORLD_NAME, num_ranks, crowd=num_ranks)
        self._crew = self._start() if must_start_afresh(loop) else self._fork()

    @property
    def members(self) -> list[Member]:
        """The ranks as their crew sees them."""
        return self._crew.members

    def are_running(self) -> bool:
        """Tell whether all are there."""
        return all(member.is_running() for member in self.members)

    def run(self, test_id: str, timeout_s: float) -> list[Ending]:
        """Run a test on all of them."""
        with suppress(OSError):  # one is gone: waiting says which, and how
            self._crew.send(test_id.encode(), self._segment)
        return self._crew.wait(self._segment, timeout_s=timeout_s, grace_s=read_settings().grace_s)

    def close(self, *, is_clean: bool) -> None:
        """End them; when nothing went wrong, in good order."""
        if is_clean:
            for member in self.members:
                member.line.close()  # there are no more tests
            wait_for_exit(self.members)
        self._crew.close()
        self._segment.close_descriptor()
        with suppress(OSError):
            Path(self.rendezvous).unlink()

    def _fork(self) -> Crew:
        def main(rank: int, line: Line) -> None:
            place = Place(rank, self._num_ranks, self._meeting, NOWHERE)
            _be_rank(self._loop, place, self.rendezvous, self._segment.descriptor, line)

        return fork_crew(main, self._num_ranks, redirect=False, terminal=NoTerminal())

    def _start(self) -> Crew:
        members: list[Member] = []
        for rank in range(self._num_ranks):
            ours, theirs = open_line()
            place = Place(rank, self._num_ranks, self._meeting, NOWHERE)
            process = multiprocessing.get_context("spawn").Process(
                target=_be_started_rank,
                args=(self._loop, place, self.rendezvous, _Sent(self._segment.descriptor), theirs.channel, theirs.side),
                daemon=True,
            )
            process.start()
            theirs.close()
            members.append(AdoptedMember(rank, process, ours))
        return Crew(members, NoTerminal())


class _Sent:
    """A descriptor that becomes the new process's own when it is started."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def __reduce__(self) -> Any:
        return _receive, (DupFd(self._descriptor),)


def _receive(sent: Any) -> int:
    return int(sent.detach())


def _be_started_rank(
    loop: Loop, place: Place, rendezvous: str, descriptor: int, channel: socket.socket, side: socket.socket
) -> None:
    _be_rank(loop, place, rendezvous, descriptor, Line(channel, side))


def _be_rank(loop: Loop, place: Place, rendezvous: str, descriptor: int, line: Line) -> None:
    tasks = TaskQueue(line)
    context = place.context(descriptor, is_thread=False, line=line)
    context.announce = tasks.keep
    set_process_context(context)
    loop(place.rank, place.size, rendezvous, tasks, CompletionQueue(line))
    leave_groups()
