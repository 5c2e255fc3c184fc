"""The output of ranks that are threads, one text per rank."""

from __future__ import annotations

import io
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple


class Captured(NamedTuple):
    """What was printed, as pytest's capsys gives it."""

    out: str
    err: str


class _PerThread(io.TextIOBase):
    """A stream that writes to the text of the calling thread's rank, or else to the original stream."""

    def __init__(self, before: Any, texts: threading.local, name: str) -> None:
        self._before = before
        self._texts = texts
        self._name = name

    def write(self, text: str) -> int:
        target = getattr(self._texts, self._name, None)
        return int((target if target is not None else self._before).write(text))

    def flush(self) -> None:
        self._before.flush()

    def writable(self) -> bool:
        return True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._before, name)


class ThreadCapture:
    """The fixture capsys of a rank that is a thread: it has only that rank's output."""

    def __init__(self, out: io.StringIO, err: io.StringIO) -> None:
        self._streams = (out, err)

    def readouterr(self) -> Captured:
        """Return what this rank has printed since the last call."""
        texts = [stream.getvalue() for stream in self._streams]
        for stream in self._streams:
            stream.seek(0)
            stream.truncate()
        return Captured(*texts)

    @contextmanager
    def disabled(self) -> Iterator[None]:
        """Do nothing: threads share the terminal's stream."""
        yield


class ThreadOutput:
    """The output of all ranks."""

    def __init__(self) -> None:
        self._local = threading.local()
        self._texts: dict[int, tuple[io.StringIO, io.StringIO]] = {}

    def join(self, rank: int) -> None:
        """Make the calling thread's output belong to this rank."""
        self._local.out, self._local.err = self._texts[rank] = (io.StringIO(), io.StringIO())

    def read(self, rank: int) -> tuple[str, str]:
        """Return what a rank has printed."""
        out, err = self._texts.get(rank, (io.StringIO(), io.StringIO()))
        return out.getvalue(), err.getvalue()

    def capture(self) -> ThreadCapture:
        """Return the calling rank's own capsys."""
        return ThreadCapture(self._local.out, self._local.err)

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Replace Python's streams inside the block."""
        before = sys.stdout, sys.stderr
        sys.stdout = _PerThread(sys.stdout, self._local, "out")
        sys.stderr = _PerThread(sys.stderr, self._local, "err")
        try:
            yield
        finally:
            sys.stdout, sys.stderr = before
