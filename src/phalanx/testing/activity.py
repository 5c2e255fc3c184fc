"""What a rank waits in, as its crew sees it from outside."""

from __future__ import annotations

from dataclasses import replace

from phalanx.engine.facts import RankFacts
from phalanx.launch.world_watch import WorldWatch
from phalanx.testing.rank_report import Waiting


def find_activity(watch: WorldWatch, pid: int) -> Waiting | None:
    """Return which operation a process waits in; None when in none."""
    for group in watch.groups():
        for row in () if group.is_broken else group.snapshot():  # nobody waits in a broken group any more
            waiting = waiting_of(row) if row.pid == pid else None
            if waiting is not None:
                return waiting if group is watch.world else replace(waiting, group=group.name)
    return None


def waiting_of(row: RankFacts) -> Waiting | None:
    """Return what a rank of a group waits in; None when it does not."""
    if row.mail is not None:
        return Waiting(row.mail.operation, location=row.mail.location)
    if row.collective is None or row.state not in ("present", "dead"):
        return None
    return Waiting(row.collective.operation, row.collective.seq, row.collective.location)
