"""A group at the moment of a failure, and what is known about a missing rank."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from phalanx.diagnosis import formatting
from phalanx.diagnosis.surroundings import Surroundings
from phalanx.diagnosis.waits import is_waiting
from phalanx.engine.facts import EntryFacts, RankFacts


@dataclass(frozen=True)
class Scene:
    """A group as one of its ranks sees it at the moment of a failure.

    Attributes:
        group: Its name.
        rank: The rank that looks.
        num_ranks: Its size.
        rows: One row per rank: what it does, and whether it is alive.
        entries: The call of each rank in the operation that failed; None if the rank is missing.
        around: What is known about where the missing ranks are in their programs.
        part: What the ranks run, such as "its program".
    """

    group: str
    rank: int
    num_ranks: int
    rows: Sequence[RankFacts] = ()
    entries: Sequence[EntryFacts | None] = ()
    around: Surroundings = field(default_factory=Surroundings)
    part: str = "its program"

    def process(self, rank: int) -> str:
        """Name a rank, with its pid if the rank is a process."""
        if not self.rows or not 0 <= rank < len(self.rows):
            return f"rank {rank}"
        row = self.rows[rank]
        return f"rank {rank}" if row.is_thread or not row.any_pid else f"rank {rank} (pid {row.any_pid})"

    def has_called(self, rank: int) -> bool:
        """Tell whether a rank has called anything in this group."""
        row = self.rows[rank]
        return row.arrived != 0 or row.mail is not None or row.begun is not None

    def whereabouts(self, rank: int) -> str:
        """Say what a missing rank did last, or does instead."""
        row = self.rows[rank]
        if self.around.states.get(rank) == "stopped":
            return f"is stopped by a signal; kill -CONT {row.any_pid} lets it go on"
        if row.state == "absent":
            return "has ended without joining the group" if self._is_gone(rank) else "has not joined the group"
        if row.is_debugged:
            return "stands at a breakpoint"
        if row.mail is not None and is_waiting(row.mail, is_broken=False):
            return f"waits in {formatting.operation(row.mail)}, begun {_ago(row.mail)}"
        if rank in self.around.waits:
            return f"waits in {self.around.waits[rank]}; {self._last(row)}"
        return self._last(row)

    def _is_gone(self, rank: int) -> bool:
        return self.around.states.get(rank) == "gone"

    def _last(self, row: RankFacts) -> str:
        entry, begun = row.entry, row.begun
        if begun is not None and begun.device == "cuda":
            return f"has called {_called(begun)}, and waits until its GPU has done what it was given before"
        if entry is None and row.arrived != 0:  # the rank was stopped or killed between its post and its journal entry
            return f"has begun collective #{row.arrived} and not yet written down what it is"
        if entry is None:
            return "has not called anything in this group yet"
        return f"{'left' if row.collective is None else 'is in'} {_called(entry)}, begun {_ago(entry)}"

    def stand(self, rank: int) -> list[tuple[str, str]]:
        """Return lines that say where a rank's program is now, the innermost call first."""
        frames = self.around.stands.get(rank, ())
        if not frames:
            return []
        verb = "is now at" if self.rows[rank].state != "left" else "went on to"
        return [("", f"{verb} {frames[0]}"), *(("", f"  called from {frame}") for frame in frames[1:])]


def _called(entry: EntryFacts) -> str:
    called = f"{entry.operation} #{entry.seq} {formatting.arguments(entry)}".rstrip()
    return f"{called}, {formatting.place(entry.location)}" if entry.location else called


def _ago(entry: EntryFacts) -> str:
    return f"{formatting.seconds(max(entry.seconds_ago, 0.0))} ago"
