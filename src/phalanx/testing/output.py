"""The output of a rank, in memory files, which remain when the rank ends in any way."""

from __future__ import annotations

import fcntl
import os
import sys
from dataclasses import dataclass

from phalanx.diagnosis.stacks import create_stack_memory

_SHOWN_BYTES = 256 * 1024


@dataclass(frozen=True)
class OutputFiles:
    """Descriptors of a rank's two streams, and of the file for its stacks.

    Attributes:
        out: Standard output.
        err: Standard error.
        stacks: Where it writes its stacks when asked.
    """

    out: int
    err: int
    stacks: int

    def redirect(self) -> None:
        """Make this process print into them, including native code."""
        for descriptor, number in ((self.out, 1), (self.err, 2)):
            os.dup2(descriptor, number)
        sys.stdout = _text_stream(1)
        sys.stderr = _text_stream(2)

    def read(self) -> tuple[str, str]:
        """Return what was printed."""
        return _read(self.out), _read(self.err)

    def read_stacks(self) -> str:
        """Return the stacks written so far."""
        return _read(self.stacks)

    def clear(self) -> None:
        """Empty the files."""
        for descriptor in (self.out, self.err, self.stacks):
            os.ftruncate(descriptor, 0)

    def close(self) -> None:
        """Close the descriptors."""
        for descriptor in (self.out, self.err, self.stacks):
            os.close(descriptor)


def create_output_files(rank: int) -> OutputFiles:
    """Make the files of a rank."""
    made: list[int] = []
    try:
        for name in ("stdout", "stderr"):
            made.append(_create(f"phalanx-rank-{rank}-{name}"))
        made.append(create_stack_memory())
    except BaseException:
        for descriptor in made:
            os.close(descriptor)
        raise
    return OutputFiles(*made)


def _create(name: str) -> int:
    descriptor = os.memfd_create(name)
    # Open them for appending, so that they can be emptied while the rank still has them open.
    fcntl.fcntl(descriptor, fcntl.F_SETFL, fcntl.fcntl(descriptor, fcntl.F_GETFL) | os.O_APPEND)
    return descriptor


def _text_stream(number: int) -> object:
    return open(number, "w", encoding="utf-8", errors="backslashreplace", buffering=1, closefd=False)


def _read(descriptor: int) -> str:
    size = os.fstat(descriptor).st_size
    start = max(0, size - _SHOWN_BYTES)
    text = os.pread(descriptor, size - start, start).decode(errors="replace")
    return f"[the first {start} bytes are left out]\n{text}" if start else text
