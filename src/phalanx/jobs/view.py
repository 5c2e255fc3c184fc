"""What the launcher needs of whatever shows a job to people."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from phalanx.jobs.rank import Rank
from phalanx.jobs.writer import Writer


class View(Protocol):
    """Shows output and the state of ranks."""

    is_watching: bool  # whether it shows what ranks do, so that somebody must find out

    def show_lines(self, rank: int, is_error: bool, lines: Sequence[bytes]) -> None:
        """Show finished lines of a rank."""

    def show_progress(self, rank: int, is_error: bool, text: bytes, is_rewritten: bool) -> None:
        """Show how the line of a rank looks that is not finished."""

    def say(self, text: str) -> None:
        """Show words of the launcher itself."""

    def update(self, ranks: Sequence[Rank]) -> None:
        """Show the ranks as they are now."""

    def writers(self) -> Sequence[Writer]:
        """Return the writers that may have something left to write."""

    def is_full(self) -> bool:
        """Tell whether it wants no more output for now."""

    def pause(self) -> None:
        """Leave the terminal to somebody else."""

    def resume(self) -> None:
        """Take it back."""

    def close(self) -> None:
        """Show all that is left, then nothing any more."""
