"""Find the operation in which a rank waits, as its crew sees it from outside."""

from __future__ import annotations

from dataclasses import replace

from phalanx.engine.facts import RankFacts
from phalanx.launch.world_watch import WorldWatch
from phalanx.testing.rank_report import Waiting


def find_activity(watch: WorldWatch, pid: int, thread: int = 0) -> Waiting | None:
    """Return the operation in which a process waits, or a thread of it if ranks are threads; or None."""
    for group in watch.groups():
        for row in () if group.is_broken else group.snapshot():  # no rank waits in a broken group
            waiting = waiting_of(row) if (row.pid, row.thread if row.is_thread else 0) == (pid, thread) else None
            if waiting is not None:
                return waiting if group is watch.world else replace(waiting, group=group.name)
    return None


def waiting_of(row: RankFacts) -> Waiting | None:
    """Return the operation in which a rank of a group waits, or None."""
    if row.mail is not None:
        return Waiting(row.mail.operation, location=row.mail.location)
    if row.collective is None or row.state not in ("present", "dead"):
        return None
    return Waiting(row.collective.operation, row.collective.seq, row.collective.location)
