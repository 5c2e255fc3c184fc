"""Because of whom an operation timed out: not everybody who is late, but those whom the others wait for.

Pure functions over a snapshot: no waiting, no I/O, so every case can be tested from literals.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Facts = Mapping[str, Any]
Row = Mapping[str, Any]

MESSAGES = ("send", "recv")
_ROOTED = ("broadcast", "reduce", "gather", "scatter")


def late_ranks(facts: Facts, rows: Sequence[Row]) -> list[int]:
    """Return the ranks because of whom an operation timed out, or for which it waits in vain."""
    culprit = [facts["culprit"]] if facts["culprit"] >= 0 else []
    if facts["kind"] != "timeout":
        return culprit
    if facts["operation"] in MESSAGES:
        peer = [facts["root"]] if facts["root"] >= 0 else []
        return culprit if is_cut_off(facts, rows) else peer
    if facts["text"] == "wait":
        return []
    # A rank that hears of somebody's timeout may be in an operation before or after that one.
    first = min(facts["seq"], facts["fault_seq"])
    late = _absent(first, facts, rows) or _absent(facts["fault_seq"], facts, rows)
    held_up = held_up_ranks(late, rows)
    return [rank for rank in late if rank not in held_up] or culprit


def is_elsewhere(facts: Facts) -> bool:
    """Tell whether it was another operation than this one that broke the group."""
    return bool(facts.get("fault_seq")) and facts["fault_seq"] != facts.get("seq")


def is_cut_off(facts: Facts, rows: Sequence[Row]) -> bool:
    """Tell whether somebody's message timed out half-way, which breaks the group: nobody is late for a collective."""
    return (
        is_elsewhere(facts) and not _absent(facts["fault_seq"], facts, rows) and broken_message(facts, rows) is not None
    )


def broken_message(facts: Facts, rows: Sequence[Row]) -> Row | None:
    """Return the message in which the rank that timed out stood; None when it was in a collective."""
    found: list[Row | None] = [row["mail"] for row in rows if row["rank"] == facts["reporter"]]
    return found[0] if found else None


def held_up_ranks(late: Sequence[int], rows: Sequence[Row]) -> set[int]:
    """Return those of the late ranks that wait for another late one, which does not wait for them in turn."""
    waits = {rank: set(_waits_for(rows[rank], rows)).intersection(late) - {rank} for rank in late}
    settled = {rank for rank in late if not waits[rank]}
    held_up: set[int] = set()
    while found := {rank for rank in late if rank not in settled and waits[rank] & settled}:
        held_up |= found
        settled |= found
    return held_up


def _absent(seq: int, facts: Facts, rows: Sequence[Row]) -> list[int]:
    return [row["rank"] for row in rows if row["arrived"] < seq and row["rank"] != facts["reporter"]]


def _waits_for(row: Row, rows: Sequence[Row]) -> list[int]:
    """Return whom a rank waits for, or waited for when the group broke: that stays readable."""
    mail, entry = row["mail"], row["entry"]
    if mail is not None:
        return [mail["root"]]
    if entry is None or row["finished"] >= entry["seq"] or row["sleeps_for"] < 0:
        return []
    late = [other["rank"] for other in rows if other["arrived"] < entry["seq"]]
    return late if late and entry["operation"] not in _ROOTED else [row["sleeps_for"]]
