"""The note that a failing rank sends to the launcher before it ends, because an exit code says too little.

It comes through the pipe that also takes what the rank writes to stderr from its failure on: see failure_output.py.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from phalanx.diagnosis.retold_errors import see_through
from phalanx.diagnosis.tracebacks import format_error, identify
from phalanx.errors import MismatchError, PhalanxError
from phalanx.launch.exceptions import find_consequence, headline_of, place_of

MARK = b"\0phalanx note: "  # stands before a note, and a line end after it
_LONGEST_TEXT = 500
_LONGEST_TRACEBACK = 1 << 16


@dataclass(frozen=True)
class Note:
    """Why a rank ends.

    Attributes:
        text: The type and message of the exception, in one line.
        place: The file and line where the program was, or "".
        exit_code: The exit code that it is going to have.
        is_consequence: Whether it fails only because another rank has failed.
        doing: The operation in which it learned of that, or "".
        traceback: The exception with its traceback, as Python writes it; "" if it is very long.
        short: The same without the calls inside phalanx and torch.
        identity: A text that is equal for equal tracebacks.
        details: If ranks made different calls, the lines that say which rank called what, and what to do.
    """

    text: str
    place: str
    exit_code: int
    is_consequence: bool
    doing: str = ""
    traceback: str = ""
    short: str = ""
    identity: str = ""
    details: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.text} ({self.place})" if self.place else self.text

    def encode(self) -> bytes:
        """Return the note as bytes for the pipe."""
        return MARK + json.dumps(asdict(self)).encode() + b"\n"


def decode_note(data: bytes) -> Note | None:
    """Read what stands between the mark and the line end; return None if it is no note."""
    try:
        facts = json.loads(data)
        return Note(**{**facts, "details": tuple(facts["details"])})
    except (ValueError, TypeError, KeyError):
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
    if isinstance(error, SystemExit):
        return Note(short, place, exit_code, cause is not None, doing)
    return Note(
        short, place, exit_code, cause is not None, doing, *_tracebacks(error), identify(error), _details(error)
    )


def _tracebacks(error: BaseException) -> tuple[str, str]:
    texts = format_error(error, is_full=True), format_error(error, is_full=False)
    return texts if max(map(len, texts)) <= _LONGEST_TRACEBACK else ("", "")


def _details(error: BaseException) -> tuple[str, ...]:
    error = see_through(error)
    return tuple(str(error).splitlines()[1:]) if isinstance(error, MismatchError) else ()
