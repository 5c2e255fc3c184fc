"""What ranks write down for whoever judges them: files, because a rank that raises has no result."""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from phalanx.errors import PhalanxError
from phalanx_tools.conformance.faults.operations import CULPRIT, NUM_RANKS

SURVIVORS = tuple(rank for rank in range(NUM_RANKS) if rank != CULPRIT)
NOTES_OF_SURVIVORS = frozenset(f"{rank}.note" for rank in SURVIVORS)


@dataclass(frozen=True)
class Note:
    """How a rank ended.

    Attributes:
        kind: The class of its error; "" when it had none.
        culprits: Whom the error blames.
        verdict: For what.
        text: All that it says.
        moment: When, in seconds of the machine's monotonic clock.
    """

    kind: str
    culprits: tuple[int, ...]
    verdict: str
    text: str
    moment: float


def note_error(folder: Path, rank: int, error: PhalanxError | None) -> None:
    """Write down with what a rank ended, or that all went well."""
    if error is None:
        note = Note("", (), "", "", time.monotonic())
    else:
        note = Note(type(error).__name__, error.culprits, error.verdict, str(error), time.monotonic())
    _write(folder / f"{rank}.note", json.dumps(asdict(note)))


def note_fault(folder: Path) -> None:
    """Write down that the fault is there from now on."""
    _write(folder / "fault", str(time.monotonic()))


def read_fault(folder: Path) -> float | None:
    """Return when the fault struck; None when it did not come to that."""
    path = folder / "fault"
    return float(path.read_text()) if path.exists() else None


def read_notes(folder: Path) -> dict[int, Note]:
    """Return what ranks have written down."""
    found = {}
    for path in folder.glob("*.note"):
        fields = json.loads(path.read_text())
        found[int(path.stem)] = Note(**{**fields, "culprits": tuple(fields["culprits"])})
    return found


def _write(path: Path, text: str) -> None:
    """Let the file appear with all of its text."""
    unfinished = path.with_suffix(".part")
    unfinished.write_text(text)
    os.replace(unfinished, path)
