"""What ranks that are threads print, each into its own text."""

from __future__ import annotations

import io
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


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
