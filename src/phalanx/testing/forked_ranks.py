"""Ranks that are forked from this process for one task: every rank has everything that it has imported and set up."""

from __future__ import annotations

from collections.abc import Callable

from phalanx.launch.connection import Connection
from phalanx.launch.context import Placement
from phalanx.launch.rendezvous import open_rendezvous
from phalanx.launch.world import name_meeting, open_world
from phalanx.testing.crew import EXIT_PATIENCE_S
from phalanx.testing.crew_starts import fork_crew
from phalanx.testing.ending import Ending
from phalanx.testing.rank_report import RankReport
from phalanx.testing.taking_part import send_report, take_part
from phalanx.testing.task_watch import Terminal


def run_forked(
    run: Callable[[Connection], RankReport], num_ranks: int, *, timeout_s: float, redirect: bool, terminal: Terminal
) -> list[Ending]:
    """Fork ranks, run the task on each, and wait until they have ended.

    Args:
        run: The task; it gets the rank's connection to this process.
        num_ranks: How many ranks.
        timeout_s: How long the task may take.
        redirect: Whether each rank prints into its own files.
        terminal: The terminal that debugged ranks share.
    """
    meeting = name_meeting()
    with open_world(num_ranks) as segment, open_rendezvous() as rendezvous:

        def main(rank: int, connection: Connection) -> None:
            placement = Placement(rank, num_ranks, meeting, rendezvous)
            send_report(take_part(placement, segment.descriptor, connection, lambda: run(connection)), connection)

        crew = fork_crew(main, num_ranks, redirect=redirect, terminal=terminal)
        try:
            endings = crew.wait(segment, timeout_s=timeout_s)
            stuck = crew.wait_for_exit()
            for member, ending in zip(crew.members, endings, strict=True):
                if ending.report is not None and (member.status or 0) > 0:  # it crashed after its report
                    ending.status = member.status
                    ending.doing = f"as it had not ended within {EXIT_PATIENCE_S:.0f} s" if member in stuck else ""
        finally:
            crew.close()
    return endings
