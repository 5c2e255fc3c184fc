"""What a rank does for one task of a test: it runs its part, closes its groups, and reports."""

from __future__ import annotations

import pickle
from collections.abc import Callable

from phalanx.groups.open_groups import note_end, open_groups
from phalanx.launch.connection import Connection
from phalanx.launch.context import LaunchContext, Placement, current_context, set_process_context
from phalanx.settings import set_placement
from phalanx.testing import coverage_of_ranks, left_behind
from phalanx.testing.rank_report import RankReport


def watched_context(placement: Placement, descriptor: int, connection: Connection) -> LaunchContext:
    """Make the context of a rank that reports faults to its crew, and asks the crew which ranks have ended."""
    context = placement.context(descriptor)
    context.tell = lambda what: connection.send((what,))
    context.ask_gone = lambda: _ask_gone(connection)
    return context


def _ask_gone(connection: Connection) -> tuple[frozenset[int], frozenset[int]]:
    connection.send(("gone?",))
    answer = connection.receive()
    return (frozenset(), frozenset()) if answer is None else (answer[0][1], answer[0][2])


def take_part(
    placement: Placement, descriptor: int, connection: Connection, run: Callable[[], RankReport]
) -> RankReport:
    """Run one task as a rank."""
    context = watched_context(placement, descriptor, connection)
    context.started_by = "pytest"
    set_process_context(context)
    set_placement(placement.rank, placement.size, *placement.rendezvous)
    try:
        report = run()
    finally:
        disarm_faults()
    report.left_behind += left_behind.end_child_processes()
    report.coverage = coverage_of_ranks.collect()
    if report.outcome != "failed":
        leave_groups()
    return report


def disarm_faults() -> None:
    """Remove the calling rank's faults: a group that still had one would keep it, and itself, alive for ever."""
    context = current_context()
    if context is None or context.interceptor is None:
        return
    context.interceptor = None
    for group in open_groups():
        group._set_interceptor(None)


def die_in_groups(status: int) -> None:
    """Mark the calling rank, a thread, as dead in its groups."""
    for group in open_groups():
        group._die(status)


def leave_groups() -> None:
    """Close the groups of the calling rank: peers must not take it for dead."""
    note_end()
    for group in open_groups():
        group.close()


def send_report(report: RankReport, connection: Connection) -> None:
    """Tell the crew how the task ended on this rank.

    Raises:
        OSError: The crew is gone.
    """
    connection.send(("report", packed(report)))


def packed(report: RankReport) -> bytes:
    """Return a report as bytes, with texts for what can't be pickled."""
    try:
        return pickle.dumps(report)
    except Exception:
        report.shown = str(report.shown)
        for result in report.subtests:
            result.shown = str(result.shown)
        for found in report.warnings:
            found.category = UserWarning
        report.properties = [(name, repr(value)) for name, value in report.properties]
        return pickle.dumps(report)
