"""Ranks forked fresh for one task from this process: what it has imported and set up is there on every rank."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from phalanx.engine import GroupSegment, create_group_segment
from phalanx.launch.rendezvous import open_rendezvous
from phalanx.launch.spawn import WORLD_NAME
from phalanx.settings import read_settings
from phalanx.testing.crew import EXIT_PATIENCE_S, Crew, wait_for_exit
from phalanx.testing.ending import Ending
from phalanx.testing.line import Line
from phalanx.testing.meetings import name_meeting
from phalanx.testing.member import Member, fork_member
from phalanx.testing.output import OutputFiles
from phalanx.testing.place import Place, packed, take_part
from phalanx.testing.rank_report import RankReport
from phalanx.testing.terminal import Terminal


def run_forked(
    run: Callable[[Line], RankReport], num_ranks: int, *, timeout_s: float, redirect: bool, terminal: Terminal
) -> list[Ending]:
    """Fork ranks, have each run the task, and wait for their end.

    Args:
        run: The task; it gets the rank's end of the line to this process.
        num_ranks: How many.
        timeout_s: How long it may take.
        redirect: Whether ranks print into files of their own.
        terminal: What ranks that are debugged share.
    """
    meeting = name_meeting()
    with new_world(num_ranks) as segment, open_rendezvous() as rendezvous:

        def main(rank: int, line: Line) -> None:
            place = Place(rank, num_ranks, meeting, rendezvous)
            line.send(packed(take_part(place, segment.descriptor, line, lambda: run(line))))

        crew = fork_crew(main, num_ranks, redirect=redirect, terminal=terminal)
        try:
            endings = crew.wait(segment, timeout_s=timeout_s, grace_s=read_settings().grace_s)
            stuck = wait_for_exit(crew.members)
            for member, ending in zip(crew.members, endings, strict=True):
                if ending.report is not None and (member.status or 0) > 0:  # it crashed on its way out
                    ending.status = member.status
                    ending.doing = f"as it had not ended within {EXIT_PATIENCE_S:.0f} s" if member in stuck else ""
        finally:
            crew.close()
    return endings


def fork_crew(main: Callable[[int, Line], None], num_ranks: int, *, redirect: bool, terminal: Terminal) -> Crew:
    """Fork ranks that each run `main(rank, line)` and end."""
    members: list[Member] = []
    try:
        for rank in range(num_ranks):

            def be_rank(line: Line, _: OutputFiles, rank: int = rank) -> None:
                main(rank, line)

            members.append(fork_member(rank, be_rank, before=members, redirect=redirect))
    except BaseException:
        for member in members:
            member.close()
        raise
    return Crew(members, terminal)


@contextmanager
def new_world(num_ranks: int) -> Iterator[GroupSegment]:
    """Make the memory of a world, for the time of one task."""
    segment = create_group_segment(WORLD_NAME, num_ranks, crowd=num_ranks)
    try:
        yield segment
    finally:
        segment.close_descriptor()
