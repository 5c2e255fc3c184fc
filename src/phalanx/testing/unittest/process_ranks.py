"""The ranks of one test as processes: forked one after another, then watched as a crew."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from phalanx.engine import GroupSegment
from phalanx.launch.connection import Connection
from phalanx.launch.context import Placement, set_process_context
from phalanx.launch.forked_ranks import ForkedRanks
from phalanx.launch.world import create_world, name_meeting
from phalanx.testing.crew import Crew
from phalanx.testing.crew_rank import CrewRank, fork_member
from phalanx.testing.ending import Ending
from phalanx.testing.taking_part import leave_groups, watched_context
from phalanx.testing.unittest.cuda_use import must_start_afresh
from phalanx.testing.unittest.rank_process import ForkedProcess, adopt_process, run_and_report


class ProcessRanks:
    """The ranks, and the memory of their world. The creator closes them."""

    def __init__(self, num_ranks: int) -> None:
        self._num_ranks = num_ranks
        self._segment: GroupSegment = create_world(num_ranks)
        self._meeting = name_meeting()
        self._starter = ForkedRanks()
        self._crew = Crew([], self._starter)

    def make_process(self, *_: Any, **arguments: Any) -> ForkedProcess:
        """Make a process that is not started yet; the arguments are those of multiprocessing.Process."""
        return ForkedProcess(
            self, **{name: arguments[name] for name in ("target", "name", "args", "kwargs") if name in arguments}
        )

    def process_factory(self, target: Callable[..., None]) -> Callable[..., Any]:
        """Return the function that makes the process of a rank that runs `target`.

        A process that uses CUDA can't be forked. Then ranks are new processes, which take seconds to start.
        """
        return torch.multiprocessing.get_context("spawn").Process if must_start_afresh(target) else self.make_process

    def fork(self, call: Callable[[], None]) -> CrewRank:
        """Fork the next rank."""
        members = self._crew.members
        rank = len(members)
        placement = Placement(rank, self._num_ranks, self._meeting)

        def main(connection: Connection) -> None:
            set_process_context(watched_context(placement, self._segment.descriptor, connection))
            try:
                run_and_report(call, connection)
            except SystemExit as leaving:
                if leaving.code == 0:
                    leave_groups()
                raise
            leave_groups()

        return fork_member(members, main, self._starter, redirect=False)

    def hear(self) -> None:
        """Note the ranks that have ended."""
        self._starter.read()

    def wait(self, processes: Sequence[Any], *, timeout_s: float, is_expected: Callable[[int], bool]) -> list[Ending]:
        """Wait for the end of all ranks.

        Args:
            processes: The processes of the ranks, in order; those not forked here are watched as well.
            timeout_s: How long the test may take.
            is_expected: Tells whether a rank may end with a status.
        """
        members = self._crew.members
        for process in processes[len(members) :]:
            members.append(adopt_process(len(members), process, self._starter))
        for member in members:
            member.may_end = is_expected
        endings = self._crew.wait(self._segment, timeout_s=timeout_s)
        self._crew.wait_for_exit()
        for ending in endings:
            if ending.report is not None:
                ending.status = None  # the report already says why the rank ended
        return endings

    def close(self) -> None:
        """End the ranks that still run, and close everything."""
        self._crew.close()
        self._segment.close_descriptor()
