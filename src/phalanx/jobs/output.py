"""Split the output of a rank into lines, as a terminal would show them.

Progress bars overwrite themselves with carriage returns. Only the last form of such a line counts.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

LONGEST_LINE_BYTES = 1 << 20  # longer lines are broken, so that they can't fill the launcher's memory
_SHOWN_BYTES = 400
_MOVES = re.compile(rb"\x1b\[[0-9;?]*[A-HJKSTfhlsu]")  # all escape sequences except colours
_UP = re.compile(rb"\x1b\[[0-9]*A")


class LineSplitter:
    """One stream of one rank."""

    def __init__(self) -> None:
        self._rest = b""
        self._redrawn = b""  # if several bars move the cursor up and down: the last one that was drawn

    @property
    def is_rewritten(self) -> bool:
        """Tell whether the unfinished line overwrites itself."""
        return bool(self._redrawn) or b"\r" in self._rest

    def pending(self) -> bytes:
        """Return the unfinished line as it looks now."""
        shown = _settle(self._rest) if b"\r" in self._rest else self._rest[:_SHOWN_BYTES]
        return (shown or self._redrawn)[:_SHOWN_BYTES]

    def feed(self, data: bytes) -> list[bytes]:
        """Add what was read, and return the finished lines, without line ends."""
        *lines, rest = (self._rest + data).split(b"\n")
        finished = self._settle_all(lines) if b"\r" in data or b"\x1b" in data or b"\r" in self._rest else lines
        if b"\r" in rest:
            rest = _forget_old_forms(rest)
        elif len(rest) > LONGEST_LINE_BYTES:
            finished, rest = [*finished, rest], b""
        self._rest = rest
        return finished

    def finish(self) -> list[bytes]:
        """Return the last line if it has no line end."""
        last = _settle(self._rest)
        self._rest = self._redrawn = b""
        return [last] if last else []

    def _settle_all(self, lines: list[bytes]) -> list[bytes]:
        finished = []
        for line in lines:
            settled = _settle(line)
            if _UP.search(line):  # several bars are being redrawn
                self._redrawn = settled
            elif settled or b"\r" not in line.rstrip(b"\r"):
                self._redrawn = b""
                finished.append(settled)
        return finished


def without_own_number(rank: int, lines: Sequence[bytes]) -> list[bytes]:
    """Remove what torch puts before the lines of its log and of tracebacks, if it is the number of this rank.

    The terminal shows the number of the rank before every line already.
    """
    own = b"[rank%d]:" % rank
    return [line.removeprefix(own).removeprefix(b" ") if line.startswith(own) else line for line in lines]


def _settle(line: bytes) -> bytes:
    """Return a line as a terminal shows it in the end."""
    line = line.removesuffix(b"\r")
    if b"\x1b" in line:
        line = _MOVES.sub(b"", line)
    if b"\r" not in line:
        return line
    forms = [form for form in line.split(b"\r") if form]
    return forms[-1].rstrip() if forms else b""


def _forget_old_forms(rest: bytes) -> bytes:
    """Keep only the last form of a line that overwrites itself."""
    head, _, last = rest.rpartition(b"\r")
    if last:
        return b"\r" + last[-LONGEST_LINE_BYTES:]
    return b"\r" + head.rpartition(b"\r")[2][-LONGEST_LINE_BYTES:] + b"\r"
