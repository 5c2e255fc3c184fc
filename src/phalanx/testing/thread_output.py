"""What ranks that are threads print, each into its own text."""

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
    """A stream that goes to the text of the thread that writes, else to where it went before."""

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
    """What a rank that is a thread gets as capsys: its own output."""

    def __init__(self, out: io.StringIO, err: io.StringIO) -> None:
        self._streams = (out, err)

    def readouterr(self) -> Captured:
        """Return what this rank has printed since the last time, and forget it."""
        texts = [stream.getvalue() for stream in self._streams]
        for stream in self._streams:
            stream.seek(0)
            stream.truncate()
        return Captured(*texts)

    @contextmanager
    def disabled(self) -> Iterator[None]:
        """Go on as before: threads share the terminal's stream."""
        yield


class ThreadOutput:
    """The texts of all ranks."""

    def __init__(self) -> None:
        self._local = threading.local()
        self._texts: dict[int, tuple[io.StringIO, io.StringIO]] = {}

    def join(self, rank: int) -> None:
        """Let the calling thread print as this rank."""
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
        """Take the place of Python's streams meanwhile."""
        before = sys.stdout, sys.stderr
        sys.stdout = _PerThread(sys.stdout, self._local, "out")
        sys.stderr = _PerThread(sys.stderr, self._local, "err")
        try:
            yield
        finally:
            sys.stdout, sys.stderr = before
