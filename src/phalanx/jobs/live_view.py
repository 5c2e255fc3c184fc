"""The live table of ranks at the bottom of the terminal; the lines that ranks print scroll by above it."""

from __future__ import annotations

import contextlib
import re
import sys
import termios
import time
from collections.abc import Iterator, Sequence

from rich.console import Console, RenderableType
from rich.live import Live
from rich.segment import Segment
from rich.text import Text

from phalanx.jobs.rank import JobRank
from phalanx.jobs.rank_table import make_table
from phalanx.jobs.writer import Writer

_COLOURS = (36, 35, 32, 33, 34, 96, 95, 92, 93, 94)
_BETWEEN_PRINTS_S = 0.1
_MANY_BYTES = 1 << 16
_MOST_HELD_BYTES = 1 << 22
_MOST_HELD_LINES = 1000
# Everything that could move the cursor, but not colours.
_UNSAFE = re.compile(r"[\x00-\x08\x0b-\x1a\x1c-\x1f\x7f]|\x1b(?!\[[0-9;]*m)")


class _Raw:
    """Text that rich prints unchanged, without looking at every character."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __rich_console__(self, *_: object) -> Iterator[Segment]:
        yield Segment(self._text)


class LiveView:
    """Draws on the terminal of stdout. It uses no threads.

    Args:
        num_ranks: How many ranks there are.
        name: The name of the job.
    """

    is_watching = True

    def __init__(self, num_ranks: int, name: str) -> None:
        self._console = Console()
        self._name, self._num_here = name, num_ranks
        self._began = self._printed_at = time.monotonic()
        self.number_ranks(0, num_ranks)
        self._ranks: Sequence[JobRank] = []
        self._lines: list[str] = []
        self._num_bytes = 0
        self._is_paused = False
        self._live = self._start()

    def number_ranks(self, first: int, num_ranks: int) -> None:
        """Show the ranks by these numbers."""
        share = f"{self._num_here} of " if num_ranks > self._num_here else ""
        self._title = f"phalanx run  {self._name}  {share}{num_ranks} ranks"
        self._prefixes = {rank: self._prefix(rank) for rank in range(first, first + self._num_here)}

    def show_lines(self, rank: int, is_error: bool, lines: Sequence[bytes]) -> None:
        """Print finished lines above the table."""
        prefix = self._prefixes[rank]
        for line in lines:
            text = _UNSAFE.sub("", line.decode(errors="replace"))
            self._lines.append(f"{prefix}{text}\x1b[0m\n" if "\x1b" in text else f"{prefix}{text}\n")
            self._num_bytes += len(line)
        if self._is_paused:
            self._hold_back()
        elif self._num_bytes > _MANY_BYTES or time.monotonic() - self._printed_at > _BETWEEN_PRINTS_S:
            self._print()

    def show_progress(self, rank: int, is_error: bool, text: bytes, is_rewritten: bool) -> None:
        """Do nothing: the table has every rank's last line."""

    def say(self, text: str) -> None:
        """Print a line of the launcher."""
        self._lines.append(_UNSAFE.sub("", text) + "\n")
        self._print()

    def update(self, ranks: Sequence[JobRank]) -> None:
        """Draw the table again."""
        self._ranks = ranks
        self._print()
        if not self._is_paused:
            with contextlib.suppress(OSError):  # the terminal is gone; SIGHUP follows
                self._live.update(self._table(), refresh=True)

    def writers(self) -> Sequence[Writer]:
        """Return none, because a terminal is written at once."""
        return ()

    def is_full(self) -> bool:
        """Return False: a rank that has the terminal may print more than a pipe takes."""
        return False

    def pause(self) -> None:
        """Remove the table and give the terminal to a rank in the debugger."""
        if not self._is_paused:
            self._print()
            self._live.stop()
            _set_echo_of_keys(True)
            self._is_paused = True

    def resume(self) -> None:
        """Draw the table again."""
        if self._is_paused:
            self._is_paused = False
            self._live = self._start()

    def close(self) -> None:
        """Remove the table; printed lines stay."""
        self._is_paused = False
        with contextlib.suppress(OSError):
            self._live.stop()
        _set_echo_of_keys(True)
        self._print()

    def _start(self) -> Live:
        live = Live(
            self._table(),
            console=self._console,
            auto_refresh=False,
            transient=True,
            redirect_stdout=False,
            redirect_stderr=False,
            vertical_overflow="crop",
        )
        _set_echo_of_keys(False)
        live.start(refresh=True)
        return live

    def _table(self) -> RenderableType:
        seconds = int(time.monotonic() - self._began)
        shown = f"{seconds // 60} min {seconds % 60} s" if seconds >= 60 else f"{seconds} s"
        size = self._console.size
        return make_table(self._ranks, f"{self._title}  {shown}", size.width, size.height) if self._ranks else Text("")

    def _hold_back(self) -> None:
        """Keep lines until the launcher has the terminal again; if there are too many, keep the last ones."""
        if self._num_bytes > _MOST_HELD_BYTES:
            self._lines = ["... lines left out ...\n", *self._lines[-_MOST_HELD_LINES:]]
            self._num_bytes = 0

    def _print(self) -> None:
        self._printed_at = time.monotonic()
        if self._lines and not self._is_paused:
            text, self._lines, self._num_bytes = "".join(self._lines), [], 0
            with contextlib.suppress(OSError):
                self._console.print(_Raw(text), end="", crop=False)

    def _prefix(self, rank: int) -> str:
        if self._console.color_system is None or self._console.no_color:
            return f"[rank {rank}] "
        return f"\x1b[{_COLOURS[rank % len(_COLOURS)]}m[rank {rank}]\x1b[0m "


def _set_echo_of_keys(is_on: bool) -> None:
    """Turn the echo of typed keys on or off; they would appear in the middle of the table."""
    with contextlib.suppress(termios.error, ValueError):  # not a terminal, for example --live into a file
        attributes = termios.tcgetattr(sys.stdout.fileno())
        attributes[3] = attributes[3] | termios.ECHO if is_on else attributes[3] & ~termios.ECHO
        termios.tcsetattr(sys.stdout.fileno(), termios.TCSADRAIN, attributes)
