"""The note that a failing rank sends to the launcher before it ends, because an exit code says too little."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from phalanx.errors import PhalanxError
from phalanx.launch.exceptions import find_consequence, headline_of, place_of

_LONGEST_TEXT = 500  # a note is written in one piece: a pipe takes 4096 bytes at once


@dataclass(frozen=True)
class Note:
    """Why a rank ends.

    Attributes:
        text: The type and message of the exception, in one line.
        place: The file and line where the program was, or "".
        exit_code: The exit code that it is going to have.
        is_consequence: Whether it fails only because another rank has failed.
        doing: The operation in which it learned of that, or "".
    """

    text: str
    place: str
    exit_code: int
    is_consequence: bool
    doing: str = ""

    def __str__(self) -> str:
        return f"{self.text} ({self.place})" if self.place else self.text

    def encode(self) -> bytes:
        """Return the note as bytes for a pipe."""
        return json.dumps(asdict(self)).encode()


def decode_note(data: bytes) -> Note | None:
    """Read a note; return None if it is not complete."""
    try:
        return Note(**json.loads(data))
    except (ValueError, TypeError):
        return None


def describe_end(error: BaseException, exit_code: int) -> Note:
    """Make the note for an uncaught exception."""
    text = f"sys.exit({error.code!r})" if isinstance(error, SystemExit) else headline_of(error)
    short = text if len(text) <= _LONGEST_TEXT else text[: _LONGEST_TEXT - 3] + "..."
    cause = find_consequence(error)
    place = place_of(error)
    doing = ""
    if isinstance(cause, PhalanxError) and cause.sequence:
        doing = f"{cause.operation} #{cause.sequence}" + (f", {place}" if place else "")
    return Note(short, place, exit_code, cause is not None, doing)
