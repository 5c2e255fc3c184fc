"""Ranks that run all tests of a class with one process group, and their connections to the main process.

The main process sends the ids of tests. A rank answers each with a report. If one has failed, all ranks end.
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

from phalanx.engine import GroupSegment
from phalanx.launch.connection import Connection, connected_pair
from phalanx.launch.context import Placement, set_process_context
from phalanx.launch.forked_ranks import ForkedRanks
from phalanx.launch.world import create_world, name_meeting
from phalanx.testing.crew import Crew
from phalanx.testing.crew_rank import CrewRank
from phalanx.testing.crew_starts import fork_crew
from phalanx.testing.ending import Ending
from phalanx.testing.rank_report import RankReport
from phalanx.testing.taking_part import leave_groups, send_report, watched_context
from phalanx.testing.unittest.cuda_use import must_start_afresh
from phalanx.testing.unittest.own_stacks import report_test_failure
from phalanx.testing.unittest.rank_process import adopt_process

# The function of a rank: `loop(rank, number of ranks, file for the rendezvous, queue of tasks, queue of results)`.
Loop = Callable[[int, int, str, "TaskQueue", "CompletionQueue"], None]


class TaskQueue:
    """A rank's end of the connection, as the queue from which it gets tests."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def get(self) -> str | None:
        """Wait for the id of a test; return None if there are no more."""
        received = self._connection.receive()
        if received is None:
            return None
        (_, _, task), (descriptor,) = received
        os.close(descriptor)  # the ranks keep their world for all tests
        return str(task.decode())


class CompletionQueue:
    """A rank's end of the connection, as the queue into which it puts results."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def put(self, result: str | BaseException) -> None:
        """Send the result of a test: its id, a SkipTest, or the exception that it raised."""
        if isinstance(result, unittest.SkipTest):
            report = RankReport("skipped", headline=str(result))
        elif isinstance(result, BaseException):
            report = report_test_failure(result)
        else:
            report = RankReport("passed")
        send_report(report, self._connection)


class ContinuousRanks:
    """The ranks of one class. The creator closes them."""

    def __init__(self, loop: Loop, num_ranks: int) -> None:
        self._loop = loop
        self._num_ranks = num_ranks
        self._meeting = name_meeting()
        with tempfile.NamedTemporaryFile(delete=False) as file:
            self.rendezvous = file.name
        self._segment: GroupSegment = create_world(num_ranks)
        self._crew = self._start() if must_start_afresh(loop) else self._fork()

    @property
    def members(self) -> list[CrewRank]:
        """The ranks as their crew sees them."""
        return self._crew.members

    def are_running(self) -> bool:
        """Tell whether all ranks run."""
        return self._crew.are_alive()

    def run(self, test_id: str, timeout_s: float) -> list[Ending]:
        """Run a test on all of them."""
        with suppress(OSError):  # one has ended: wait() says which, and how
            self._crew.send(test_id.encode(), self._segment, self._meeting)
        return self._crew.wait(self._segment, timeout_s=timeout_s)

    def close(self, *, is_clean: bool) -> None:
        """End the ranks; with `is_clean`, let them end by themselves."""
        if is_clean:
            for member in self.members:
                member.connection.close()  # there are no more tests
            self._crew.wait_for_exit()
        self._crew.close()
        self._segment.close_descriptor()
        with suppress(OSError):
            Path(self.rendezvous).unlink()

    def _fork(self) -> Crew:
        def main(rank: int, connection: Connection) -> None:
            placement = Placement(rank, self._num_ranks, self._meeting)
            _be_rank(self._loop, placement, self.rendezvous, self._segment.descriptor, connection)

        return fork_crew(main, self._num_ranks, redirect=False)

    def _start(self) -> Crew:
        starter = ForkedRanks()
        crew = Crew([], starter)
        for rank in range(self._num_ranks):
            ours, theirs = connected_pair()
            placement = Placement(rank, self._num_ranks, self._meeting)
            process = multiprocessing.get_context("spawn").Process(
                target=_be_started_rank,
                args=(self._loop, placement, self.rendezvous, _Sent(self._segment.descriptor), theirs.stream),
                daemon=True,
            )
            process.start()
            theirs.close()
            crew.members.append(adopt_process(rank, process, starter, ours))
        return crew


class _Sent:
    """A descriptor that is sent to the new process when it starts."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def __reduce__(self) -> Any:
        return _receive, (DupFd(self._descriptor),)


def _receive(sent: Any) -> int:
    return int(sent.detach())


def _be_started_rank(loop: Loop, placement: Placement, rendezvous: str, descriptor: int, stream: socket.socket) -> None:
    _be_rank(loop, placement, rendezvous, descriptor, Connection(stream))


def _be_rank(loop: Loop, placement: Placement, rendezvous: str, descriptor: int, connection: Connection) -> None:
    tasks = TaskQueue(connection)
    set_process_context(watched_context(placement, descriptor, connection))
    loop(placement.rank, placement.size, rendezvous, tasks, CompletionQueue(connection))
    leave_groups()
