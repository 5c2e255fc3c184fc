"""The view without a table: it prints lines with the rank in front."""

from __future__ import annotations

import time
from collections.abc import Sequence

from phalanx.jobs.rank import JobRank
from phalanx.jobs.writer import Writer

_BETWEEN_BARS_S = 5.0


class PlainView:
    """Prints lines of stdout to stdout and lines of stderr to stderr, and never mixes two lines.

    Args:
        num_ranks: How many ranks there are.
    """

    is_watching = False

    def __init__(self, num_ranks: int) -> None:
        self._num_here = num_ranks
        self.number_ranks(0, num_ranks)
        self._out, self._err = Writer(1), Writer(2)
        self._bars: dict[tuple[int, bool], tuple[float, bytes]] = {}  # when each line was last shown, and its text

    def number_ranks(self, first: int, num_ranks: int) -> None:
        """Put these numbers before the lines."""
        width = len(str(num_ranks - 1))
        self._prefixes = {rank: f"[{rank:{width}}] ".encode() for rank in range(first, first + self._num_here)}

    def show_lines(self, rank: int, is_error: bool, lines: Sequence[bytes]) -> None:
        """Write finished lines."""
        self._bars.pop((rank, is_error), None)
        prefix = self._prefixes[rank]
        self._writer(is_error).put(prefix + (b"\n" + prefix).join(lines) + b"\n")

    def show_progress(self, rank: int, is_error: bool, text: bytes, is_rewritten: bool) -> None:
        """Write the current form of a progress bar every few seconds."""
        if not is_rewritten:
            return
        now = time.monotonic()
        shown_at, shown = self._bars.setdefault((rank, is_error), (now, b""))
        if now - shown_at > _BETWEEN_BARS_S and text.strip() and text != shown:
            self._bars[rank, is_error] = now, text
            self._writer(is_error).put(self._prefixes[rank] + text + b"\n")

    def say(self, text: str) -> None:
        """Write to stderr."""
        self._err.put(text.encode(errors="backslashreplace") + b"\n")

    def update(self, ranks: Sequence[JobRank]) -> None:
        """Do nothing, because there is no table."""

    def writers(self) -> Sequence[Writer]:
        """Return the writers of stdout and stderr."""
        return self._out, self._err

    def is_full(self) -> bool:
        """Tell whether a reader of the output is too slow."""
        return self._out.is_full() or self._err.is_full()

    def pause(self) -> None:
        """Do nothing: a rank in the debugger may print more than a pipe takes, and must not wait."""

    def resume(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Write the rest, however long that takes: the ranks have ended, and Ctrl-C works as usual."""
        for writer in self.writers():
            while writer.is_waiting():
                writer.write_some(timeout_s=1)

    def _writer(self, is_error: bool) -> Writer:
        return self._err if is_error else self._out
