"""What a rank tells the launcher before it ends badly, because an exit code says too little."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from phalanx.errors import AbortedError, PeerError, PhalanxError
from phalanx.launch.exceptions import headline_of, place_of

_LONGEST_TEXT = 500  # a note is written in one piece: a pipe takes 4096 bytes at once
# What Gloo and torch's store say when the other end of a connection has gone.
_LOST_CONNECTION = ("Connection closed by peer", "Connection reset by peer", "Broken pipe")


@dataclass(frozen=True)
class Note:
    """Why a rank ends.

    Attributes:
        text: Type and message of the exception, in a line.
        place: File and line where the program was, or "".
        exit_code: What it will end with, if nothing comes between.
        is_consequence: Whether it only fails because another rank has.
        doing: The operation of a group in which it heard so, or "".
    """

    text: str
    place: str
    exit_code: int
    is_consequence: bool
    doing: str = ""

    def __str__(self) -> str:
        return f"{self.text} ({self.place})" if self.place else self.text

    def encode(self) -> bytes:
        """Return it as bytes for a pipe."""
        return json.dumps(asdict(self)).encode()


def decode_note(data: bytes) -> Note | None:
    """Read a note; None when it was not written to its end."""
    try:
        return Note(**json.loads(data))
    except (ValueError, TypeError):
        return None


def describe_end(error: BaseException, exit_code: int) -> Note:
    """Make the note for an exception that nobody has caught."""
    text = f"sys.exit({error.code!r})" if isinstance(error, SystemExit) else headline_of(error)
    short = text if len(text) <= _LONGEST_TEXT else text[: _LONGEST_TEXT - 3] + "..."
    cause = _find_consequence(error)
    place = place_of(error)
    doing = ""
    if isinstance(cause, PhalanxError) and cause.sequence:
        doing = f"{cause.operation} #{cause.sequence}" + (f", {place}" if place else "")
    return Note(short, place, exit_code, cause is not None, doing)


def _find_consequence(error: BaseException | None) -> BaseException | None:
    """Return what says that another rank has failed: the exception, or what it was raised from."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        if isinstance(error, (PeerError, AbortedError)):
            return error
        if isinstance(error, RuntimeError) and any(words in str(error) for words in _LOST_CONNECTION):
            return error
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return None
