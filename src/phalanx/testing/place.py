"""A rank's place in the world of a test, and what it does there: run its part, leave in good order, report."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from phalanx.launch.context import LaunchContext, current_context, set_process_context
from phalanx.launch.rendezvous import Rendezvous
from phalanx.settings import set_placement
from phalanx.testing import coverage_of_ranks, left_behind
from phalanx.testing.line import Line
from phalanx.testing.rank_report import RankReport


@dataclass(frozen=True)
class Place:
    """Where a rank belongs.

    Attributes:
        rank: Its number.
        size: How many there are.
        meeting: Name of the place where the world's later groups meet.
        rendezvous: Where torch's own backends meet.
    """

    rank: int
    size: int
    meeting: str
    rendezvous: Rendezvous

    def context(self, descriptor: int, *, is_thread: bool, line: Line | None = None) -> LaunchContext:
        """Make the context in which phalanx.connect() finds the world's memory."""
        context = LaunchContext(self.rank, self.size, descriptor, is_thread, self.meeting, self.rendezvous.store)
        if line is not None:
            context.announce = lambda memory: line.notify("group", descriptor=memory)
            context.tell = line.notify
            context.ask_gone = line.ask_gone
        return context


def take_part(place: Place, descriptor: int, line: Line, run: Callable[[], RankReport]) -> RankReport:
    """Be a rank for the time of one task."""
    set_process_context(place.context(descriptor, is_thread=False, line=line))
    set_placement(place.rank, place.size, *place.rendezvous)
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
