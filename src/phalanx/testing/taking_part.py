"""What a rank does for one task of a test: it runs its part, leaves its groups in good order, and reports."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable
from typing import Any

from phalanx.launch.connection import Connection
from phalanx.launch.context import LaunchContext, Placement, current_context, set_process_context
from phalanx.settings import set_placement
from phalanx.testing import coverage_of_ranks, left_behind
from phalanx.testing.rank_report import RankReport


def watched_context(placement: Placement, descriptor: int, connection: Connection) -> LaunchContext:
    """Make the context of a rank that tells its crew of faults, and asks it who is gone."""
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
    """Be a rank for the time of one task."""
    set_process_context(watched_context(placement, descriptor, connection))
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
    """Take the calling rank's faults away: a group that still had one would keep it, and itself, for ever."""
    context = current_context()
    groups: Any = sys.modules.get("phalanx.groups.open_groups")
    if context is None or context.interceptor is None:
        return
    context.interceptor = None
    for group in groups.open_groups() if groups is not None else ():
        group._set_interceptor(None)


def die_in_groups(status: int) -> None:
    """Let the peers of the calling rank, a thread, see it die."""
    groups: Any = sys.modules.get("phalanx.groups.open_groups")
    for group in groups.open_groups() if groups is not None else ():
        group._die(status)


def leave_groups() -> None:
    """Close the groups of the calling rank: peers must not take it for dead."""
    groups: Any = sys.modules.get("phalanx.groups.open_groups")
    if groups is not None:
        for group in groups.open_groups():
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
