"""The ranks of one test as processes: forked one after another, then watched as a crew."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from phalanx.engine import GroupSegment, create_group_segment
from phalanx.launch.context import set_process_context
from phalanx.launch.rendezvous import NOWHERE
from phalanx.launch.spawn import WORLD_NAME
from phalanx.settings import read_settings
from phalanx.testing.crew import Crew, wait_for_exit
from phalanx.testing.ending import Ending
from phalanx.testing.line import Line
from phalanx.testing.meetings import name_meeting
from phalanx.testing.member import Member, fork_member
from phalanx.testing.output import OutputFiles
from phalanx.testing.place import Place, leave_groups
from phalanx.testing.terminal import NoTerminal
from phalanx.testing.unittest.cuda_use import must_start_afresh
from phalanx.testing.unittest.rank_process import AdoptedMember, ForkedProcess, run_and_report


class ProcessRanks:
    """They, and the memory of their world. Whoever makes them closes them."""

    def __init__(self, num_ranks: int) -> None:
        self._num_ranks = num_ranks
        self._segment: GroupSegment = create_group_segment(WORLD_NAME, num_ranks, crowd=num_ranks)
        self._meeting = name_meeting()
        self._members: list[Member] = []

    def make_process(self, *_: Any, **arguments: Any) -> ForkedProcess:
        """Make a process that is not started yet: takes what multiprocessing.Process takes."""
        return ForkedProcess(
            self, **{name: arguments[name] for name in ("target", "name", "args", "kwargs") if name in arguments}
        )

    def process_factory(self, target: Callable[..., None]) -> Callable[..., Any]:
        """Return what makes the process of a rank that runs `target`.

        A process that uses CUDA can't be forked: then ranks are started afresh, which takes seconds, not milliseconds.
        """
        return torch.multiprocessing.get_context("spawn").Process if must_start_afresh(target) else self.make_process

    def fork(self, call: Callable[[], None]) -> Member:
        """Fork the next rank."""
        rank = len(self._members)
        place = Place(rank, self._num_ranks, self._meeting, NOWHERE)

        def main(line: Line, _: OutputFiles) -> None:
            set_process_context(place.context(self._segment.descriptor, is_thread=False, line=line))
            try:
                run_and_report(call, line)
            except SystemExit as leaving:
                if leaving.code == 0:
                    leave_groups()
                raise
            leave_groups()

        member = fork_member(rank, main, before=self._members, redirect=False)
        self._members.append(member)
        return member

    def wait(self, processes: Sequence[Any], *, timeout_s: float, is_expected: Callable[[int], bool]) -> list[Ending]:
        """Wait for the end of all ranks.

        Args:
            processes: Theirs, in order; those not forked here are watched as well.
            timeout_s: How long it may take.
            is_expected: Tells of a status whether a rank may end so.
        """
        for process in processes[len(self._members) :]:
            self._members.append(AdoptedMember(len(self._members), process))
        for member in self._members:
            member.may_end = is_expected
        crew = Crew(self._members, NoTerminal())
        endings = crew.wait(self._segment, timeout_s=timeout_s, grace_s=read_settings().grace_s)
        wait_for_exit(self._members)
        for ending in endings:
            if ending.report is not None:
                ending.status = None  # the exit code of a rank that reported says the same again
        return endings

    def close(self) -> None:
        """End those that still run, and let go of everything."""
        for member in self._members:
            member.close()
        self._members.clear()
        self._segment.close_descriptor()
