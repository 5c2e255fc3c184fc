"""The note that a failing rank sends to the launcher before it ends, because an exit code says too little.

It comes through the pipe that also takes what the rank writes to stderr from its failure on: see failure_output.py.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace

from phalanx.diagnosis.retold_errors import see_through
from phalanx.diagnosis.tracebacks import format_error, identify
from phalanx.errors import Details, MismatchError, PeerDiedError, PeerLeftError, PhalanxError
from phalanx.launch.disagreement import Disagreement, decode_disagreement, read_disagreement
from phalanx.launch.exceptions import find_consequence, find_mismatch, headline_of, place_of

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
        details: If ranks made different calls, who called what, and what to do: labels and texts.
        disagreement: If ranks made different calls, what the rank knows of that.
        lost_pid: If it has learned that the process of another rank ended, or left the group, the id of that process;
            or 0.
        last_call: What that process did last in its group, or "".
        has_left: Whether that rank has left the group or ended without it, and did not die.
    """

    text: str
    place: str
    exit_code: int
    is_consequence: bool
    doing: str = ""
    traceback: str = ""
    short: str = ""
    identity: str = ""
    details: Details = ()
    disagreement: Disagreement | None = None
    lost_pid: int = 0
    last_call: str = ""
    has_left: bool = False

    def __str__(self) -> str:
        return f"{self.text} ({self.place})" if self.place else self.text

    def encode(self) -> bytes:
        """Return the note as bytes for the pipe."""
        return MARK + json.dumps(asdict(self)).encode() + b"\n"


def decode_note(data: bytes) -> Note | None:
    """Read what stands between the mark and the line end; return None if it is no note."""
    try:
        facts = json.loads(data)
        disagreement = decode_disagreement(facts["disagreement"])
        details = tuple((label, text) for label, text in facts["details"])
        return Note(**{**facts, "details": details, "disagreement": disagreement})
    except (ValueError, TypeError, KeyError):
        return None


def describe_end(error: BaseException, exit_code: int) -> Note:
    """Make the note for an uncaught exception."""
    text = _exit_call(error) if isinstance(error, SystemExit) else headline_of(error)
    short = text if len(text) <= _LONGEST_TEXT else text[: _LONGEST_TEXT - 3] + "..."
    cause, mismatch = find_consequence(error), find_mismatch(error)
    place = place_of(error)
    note = Note(short, place, exit_code, cause is not None, _doing(cause or mismatch, place))
    if isinstance(cause, (PeerDiedError, PeerLeftError)):  # the launcher may look when all ranks have left the group
        has_left = cause.verdict != "died"
        note = replace(note, lost_pid=cause.pid, last_call=cause.last_call, has_left=has_left)
    if isinstance(error, SystemExit):
        return note
    traceback, short_traceback = _tracebacks(error)
    return replace(
        note,
        traceback=traceback,
        short=short_traceback,
        identity=identify(error),
        details=_details(error),
        disagreement=read_disagreement(mismatch),
    )


def _exit_call(request: SystemExit) -> str:
    try:
        return f"sys.exit({request.code!r})"
    except Exception:  # the __repr__ of the program's own object
        return f"sys.exit(...), with a {type(request.code).__name__}"


def _doing(reason: BaseException | None, place: str) -> str:
    """Name the operation that another rank has ended, or has perhaps ended, if ranks disagree."""
    if not isinstance(reason, PhalanxError) or not reason.sequence:
        return ""
    return f"{reason.operation} #{reason.sequence}" + (f", {place}" if place else "")


def _tracebacks(error: BaseException) -> tuple[str, str]:
    texts = format_error(error, is_full=True), format_error(error, is_full=False)
    return texts if max(map(len, texts)) <= _LONGEST_TRACEBACK else ("", "")


def _details(error: BaseException) -> Details:
    error = see_through(error)
    return error.details if isinstance(error, MismatchError) else ()
