"""The interface of the views, which show a job to people."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from phalanx.jobs.rank import JobRank
from phalanx.jobs.writer import Writer


class View(Protocol):
    """Shows output and the state of ranks."""

    is_watching: bool  # whether it shows what ranks do, so that the launcher must find out

    def number_ranks(self, first: int, num_ranks: int) -> None:
        """Show the ranks from now on by their numbers among the ranks of all hosts.

        Args:
            first: The number of the first rank here.
            num_ranks: How many ranks all hosts have.
        """

    def show_lines(self, rank: int, is_error: bool, lines: Sequence[bytes]) -> None:
        """Show finished lines of a rank."""

    def show_progress(self, rank: int, is_error: bool, text: bytes, is_rewritten: bool) -> None:
        """Show the unfinished line of a rank."""

    def say(self, text: str) -> None:
        """Show a line of the launcher itself."""

    def update(self, ranks: Sequence[JobRank]) -> None:
        """Show the ranks as they are now."""

    def writers(self) -> Sequence[Writer]:
        """Return the writers that may have unwritten output."""

    def is_full(self) -> bool:
        """Tell whether it can't take more output now."""

    def pause(self) -> None:
        """Give the terminal to a rank in the debugger."""

    def resume(self) -> None:
        """Take the terminal back."""

    def close(self) -> None:
        """Show the rest, and stop."""
