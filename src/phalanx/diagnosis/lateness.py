"""Find the ranks that caused a timeout: of all late ranks, those that the others wait for.

Pure functions over a snapshot: no waiting, no I/O, so every case can be tested from literals.
"""

from __future__ import annotations

from collections.abc import Sequence

from phalanx.engine.facts import EntryFacts, RankFacts, Trouble, far_rank


def late_ranks(facts: Trouble, rows: Sequence[RankFacts]) -> list[int]:
    """Return the ranks that an operation waits for, or waited for until it timed out."""
    culprit = [facts.culprit] if facts.culprit >= 0 else []
    if facts.kind != "timeout":
        return culprit
    if facts.is_message:
        peer = [facts.root] if facts.root >= 0 else []
        return culprit if is_cut_off(facts, rows) else peer
    if facts.awaited == "work":
        return []
    # A rank that learns of another rank's timeout may be in an earlier or later operation.
    first = min(facts.seq, facts.fault_seq)
    late = _absent(first, facts, rows) or _absent(facts.fault_seq, facts, rows)
    held_up = held_up_ranks(late, rows)
    return [rank for rank in late if rank not in held_up] or culprit


def is_elsewhere(facts: Trouble) -> bool:
    """Tell whether another operation broke the group."""
    return facts.fault_seq not in (0, facts.seq)


def is_cut_off(facts: Trouble, rows: Sequence[RankFacts]) -> bool:
    """Tell whether a message that timed out half-way broke the group; then no rank is late for a collective."""
    return is_elsewhere(facts) and not _absent(facts.fault_seq, facts, rows) and broken_message(facts, rows) is not None


def broken_message(facts: Trouble, rows: Sequence[RankFacts]) -> EntryFacts | None:
    """Return the message in which a rank timed out; None if it timed out in a collective."""
    found = [row.mail for row in rows if row.rank == facts.reporter]
    return found[0] if found else None


def held_up_ranks(late: Sequence[int], rows: Sequence[RankFacts]) -> set[int]:
    """Return the late ranks that wait for another late rank, unless that rank also waits for them."""
    waits = {rank: set(awaited_ranks(rows[rank], rows)).intersection(late) - {rank} for rank in late}
    settled = {rank for rank in late if not waits[rank]}
    held_up: set[int] = set()
    while found := {rank for rank in late if rank not in settled and waits[rank] & settled}:
        held_up |= found
        settled |= found
    return held_up


def _absent(seq: int, facts: Trouble, rows: Sequence[RankFacts]) -> list[int]:
    return [row.rank for row in rows if row.arrived < seq and row.rank != facts.reporter]


def awaited_ranks(row: RankFacts, rows: Sequence[RankFacts]) -> list[int]:
    """Return the ranks that a rank waits for, or waited for when the group broke; its entry still shows this."""
    mail, entry = row.mail, row.collective
    if mail is not None:
        return [mail.root] if far_rank(mail.root) is None else []
    if entry is None or row.sleeps_for < 0:
        return []
    late = [other.rank for other in rows if other.arrived < entry.seq]
    return late if late and not entry.is_rooted else [row.sleeps_for]
