"""A job in which no rank has failed by itself: a rank has left without an error, and others still waited for it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from phalanx.diagnosis.formatting import advice_about_death, death, rank_list
from phalanx.jobs.rank import JobRank
from phalanx.launch.rank import first_culprit

if TYPE_CHECKING:
    from phalanx.diagnosis.observation import Observation


def find_early(ranks: Sequence[JobRank], seen: Observation | None) -> list[JobRank]:
    """Return the ranks that left too early; none if a rank has failed by itself.

    Args:
        ranks: All ranks of this host.
        seen: What was seen when the first rank failed.
    """
    witness = first_culprit(ranks)
    if witness is None or witness.is_culprit or witness.note is None or not witness.note.lost_pid:
        return []
    well = [rank for rank in ranks if rank.failed_at is None]
    first = next((rank for rank in well if rank.pid == witness.note.lost_pid), None)
    if first is None:
        return []
    others = _fewer_calls(first, seen) if first.status == 0 else set()
    return [rank for rank in well if rank is first or (rank.status == 0 and rank.pid in others)]


def _fewer_calls(rank: JobRank, seen: Observation | None) -> set[int]:
    """Return the processes that have left a group of this rank too, and have not made all calls that others made."""
    found = set()
    for view in seen.groups if seen is not None else ():
        if any(row.any_pid == rank.pid for row in view.rows):
            last = max(row.arrived for row in view.rows)
            found |= {row.any_pid for row in view.rows if row.state == "left" and row.arrived < last}
    return found


def describe_early(early: Sequence[JobRank], ranks: Sequence[JobRank], num_ranks: int, where: str = "") -> str:
    """Return a line that says which ranks left too early, and which waited for them."""
    waiting = [rank.number for rank in ranks if rank.failed_at is not None]
    witness = first_culprit(ranks)
    has_left = witness is not None and witness.note is not None and witness.note.has_left
    are_several = len(early) > 1
    if any(rank.status != 0 for rank in early):
        how = "closed the group"
    elif has_left:
        how = "have reached the end of their program" if are_several else "has reached the end of its program"
    else:
        how = death(0)
    whom = "them" if are_several else "it"
    names = rank_list(rank.number for rank in early)
    return f"{names} of {num_ranks}{where} {how} while {rank_list(waiting)} still waited for {whom}"


def advise(early: Sequence[JobRank], witness: JobRank | None) -> str:
    """Say what to do about ranks that left too early."""
    if witness is not None and witness.note is not None and not witness.note.has_left:
        return advice_about_death(0)
    what = "ends" if all(rank.status == 0 for rank in early) else "closes the group"
    return f"let every rank make the same calls before it {what}"
