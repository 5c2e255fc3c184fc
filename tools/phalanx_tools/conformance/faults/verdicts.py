"""Decide whether a cell is named, from what its ranks wrote down. A pure function, so it can be tested from literals.

A cell is named when on every rank but the culprit all of this is true:

- The rank raised a PhalanxError.
- The error blames the culprit and nobody else: `error.culprits` is exactly (culprit,). If ranks called different things
  and few of them have come, the error may say that it is unknown who is right. It then blames nobody.
- Its text contains "rank <culprit>", and says of that rank what it did: how it died, what it raised, in which line and
  function of its program it stands, or what it called instead.
- `error.verdict` is one that belongs to the fault.
- It came within a second of the fault; where only a timeout can tell, within a second of the timeout.

A message is a matter of two. The partner is held to the same, with the verdicts that messages have; when both sides
disagree it is right for each to blame the other, and what a rank that waits in vain says of the culprit may be no more
than its name. Bystanders, who wait for all ranks in the next collective, can only know that one of the two can't go on,
often because the launcher tells them what it raised: their error must blame the culprit or the partner or both, and
nobody else, and its text must contain "rank <culprit>" all the same. When the culprit was killed, raised or ended hard,
that is known to everybody, and bystanders too must blame it alone.

Where a small message is early, or is never received, nobody is held up: such cells are harmless, all ranks must end
without an error, and they are not counted.
"""

from __future__ import annotations

import re

from phalanx_tools.conformance.faults.cell import Cell, Run
from phalanx_tools.conformance.faults.notes import SURVIVORS, Note
from phalanx_tools.conformance.faults.operations import CULPRIT, NUM_RANKS, PARTNER

PROMPT_S = 1.0
_UNKNOWN = "  unknown  who is right: "
_KNOWN_TO_ALL = ("killed", "raised", "exited hard")
_IN_VAIN = frozenset({"no sender", "no receiver", "late", "deadlock"})
_OF_PARTNERS = {
    "stalled": _IN_VAIN - {"deadlock"},
    "wrong shape": frozenset({"different message", "raised"}),
    "wrong dtype": frozenset({"different message", "raised"}),
}


def find_flaws(cell: Cell, run: Run, prompt_s: float | None = None) -> list[str]:
    """Return why the cell is not named, a line for each reason; nothing when it is.

    Args:
        cell: The cell.
        run: What happened.
        prompt_s: How late an error may come, if not PROMPT_S.
    """
    prompt_s = PROMPT_S if prompt_s is None else prompt_s
    if run.fault_at is None:
        return ["the fault did not come about"]
    if cell.is_harmless:
        return [
            f"rank {rank} {_ending(run, rank)}" for rank in range(NUM_RANKS) if _ending(run, rank) != "had no error"
        ]
    flaws = []
    for rank in SURVIVORS:
        note = run.notes.get(rank)
        if note is None or not note.kind:
            flaws.append(f"rank {rank} {_ending(run, rank)}")
        else:
            late_s = note.moment - run.fault_at - (0.0 if cell.is_prompt else cell.timeout.total_seconds())
            found = [
                *_find_flaws_of(cell, rank, note),
                *([f"came {late_s:.2f} s late"] if late_s > prompt_s else []),
            ]
            flaws += [f"rank {rank} {flaw}" for flaw in found]
    return flaws


def _ending(run: Run, rank: int) -> str:
    note = run.notes.get(rank)
    if note is None:
        return "died or hung"
    return f"raised {note.kind}" if note.kind else "had no error"


def _find_flaws_of(cell: Cell, rank: int, note: Note) -> list[str]:
    is_bystander = cell.operation.is_message and rank != PARTNER and cell.fault.name not in _KNOWN_TO_ALL
    flaws = []
    is_blame_right = set(note.culprits) <= {CULPRIT, PARTNER} if is_bystander else note.culprits == (CULPRIT,)
    is_unknown = not note.culprits and note.kind == "MismatchError" and _UNKNOWN in note.text
    if not is_unknown and (not note.culprits or not is_blame_right):
        flaws.append(f"blames {note.culprits}")
    if note.verdict not in _verdicts(cell, is_bystander):
        flaws.append(f'has the verdict "{note.verdict}"')
    if not re.search(_words(cell, is_bystander), _without_hearsay(note.text)):
        flaws.append(f"does not say what rank {CULPRIT} did")
    return flaws


def _verdicts(cell: Cell, is_bystander: bool) -> frozenset[str]:
    fault = cell.fault
    if is_bystander and not cell.is_prompt:
        return _IN_VAIN | {"raised"}
    if is_bystander:
        return frozenset({"raised"}) | (fault.verdicts if fault.name == "exited" else set())
    if cell.operation.is_message and not fault.is_loss:
        return _OF_PARTNERS.get(fault.name, _IN_VAIN)
    return fault.verdicts


def _words(cell: Cell, is_bystander: bool) -> str:
    is_told_all = (
        not cell.operation.is_message or cell.fault.is_loss or (cell.fault.name == "stalled" and not is_bystander)
    )
    return cell.fault.words if is_told_all else rf"\brank {CULPRIT}\b"


def _without_hearsay(text: str) -> str:
    """Take away where a rank is mentioned but not blamed."""
    return re.sub(r"noticed by rank \d+", "", text)
