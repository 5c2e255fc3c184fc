"""What the user sees of a build: on a terminal a line that counts seconds, elsewhere a first and a last line."""

from __future__ import annotations

import sys
from typing import TextIO


class Progress:
    """A line on standard error. One thread uses it."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream
        self._shown = ""

    def show(self, text: str, elapsed_s: float) -> None:
        """Show what is going on, and for how long."""
        if self._out().isatty():
            self._write(f"\r\x1b[Kphalanx: {text} ({elapsed_s:.0f} s)")
        elif text != self._shown:
            self._write(f"phalanx: {text}\n")
        self._shown = text

    def end(self, text: str = "") -> None:
        """Remove the line, and print a last text."""
        if self._shown and self._out().isatty():
            self._write("\r\x1b[K")
        if text:
            self._write(f"phalanx: {text}\n")
        self._shown = ""

    def _out(self) -> TextIO:
        return self._stream or sys.stderr

    def _write(self, text: str) -> None:
        self._out().write(text)
        self._out().flush()
