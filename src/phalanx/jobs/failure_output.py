"""What a rank writes to stderr from the moment in which an exception has ended its program.

    rank --> [what sys.excepthook prints] [mark, note, line end] [what the rank still writes until it ends] --> launcher

It comes through a pipe of its own, so that the launcher can decide what the terminal shows of it.
"""

from __future__ import annotations

import re

from phalanx.jobs.notes import MARK, Note, decode_note

_RANK_OF_TORCH = re.compile(rb"^\[rank\d+\]: ?", re.MULTILINE)  # torch's excepthook puts it before every line
_COLOUR = re.compile(rb"\x1b\[[0-9;]*m")


class FailureOutput:
    """The reader of this pipe.

    Attributes:
        note: The note; None before it has come.
    """

    def __init__(self) -> None:
        self.note: Note | None = None
        self._printed = bytearray()
        self._mark_at = -1  # where the note begins, if it has begun
        self._has_note = False
        self._later = b""

    @property
    def printed(self) -> bytes:
        """What sys.excepthook has printed; it may print more before the note comes."""
        return bytes(self._printed if self._mark_at < 0 else self._printed[: self._mark_at])

    @property
    def num_waiting_bytes(self) -> int:
        """How much it holds before the note has come."""
        return 0 if self._has_note else len(self._printed)

    def feed(self, data: bytes) -> None:
        """Add what was read from the pipe."""
        if self._has_note:
            self._later += data
            return
        num_known = len(self._printed)
        self._printed += data
        if self._mark_at < 0:
            self._mark_at = self._printed.find(MARK, max(0, num_known - len(MARK)))
        if self._mark_at >= 0 and b"\n" in data:
            self._take_note()

    def _take_note(self) -> None:
        note, end, later = bytes(self._printed[self._mark_at + len(MARK) :]).partition(b"\n")
        if end:
            self._has_note = True
            self.note, self._later = decode_note(note), later
            del self._printed[self._mark_at :]
            self._mark_at = -1

    def take_early(self, keep_bytes: int) -> bytes:
        """Return the first part of `printed`, and forget it; keep the last part, and what belongs to the note."""
        end = max(0, len(self._printed) - keep_bytes)
        if self._mark_at >= 0:
            end = min(end, self._mark_at)
            self._mark_at -= end
        early = bytes(self._printed[:end])
        del self._printed[:end]
        return early

    def take_later(self) -> bytes:
        """Return what the rank has written after the note since the last call."""
        later, self._later = self._later, b""
        return later

    def shown(self) -> bytes:
        """Return what a terminal shows of `printed`: short tracebacks, and no ranks before the lines.

        If the program's own hook has printed something else than a traceback, that is shown as it is.
        """
        printed = _RANK_OF_TORCH.sub(b"", self.printed)
        if self.note is None or not self.note.traceback:
            return printed
        traceback, short = (text.encode(errors="backslashreplace") for text in (self.note.traceback, self.note.short))
        plain = _COLOUR.sub(b"", printed)
        return plain.replace(traceback, short, 1) if traceback in plain else printed
