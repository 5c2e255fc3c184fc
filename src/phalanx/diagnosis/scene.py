"""A group at the moment of trouble, and what it says of a rank that did not come."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from phalanx.diagnosis import formatting
from phalanx.diagnosis.surroundings import Surroundings
from phalanx.diagnosis.waits import is_waiting

Facts = Mapping[str, Any]
Row = Mapping[str, Any]


@dataclass(frozen=True)
class Scene:
    """A group as one of its ranks sees it at the moment of trouble.

    Attributes:
        group: Its name.
        rank: Who looks.
        num_ranks: Its size.
        rows: One row per rank: what it does, whether it lives.
        entries: What each rank asked for in the operation that failed; None where it has not come.
        around: Where the missing ranks stand, as far as that could be found out.
    """

    group: str
    rank: int
    num_ranks: int
    rows: Sequence[Row] = ()
    entries: Sequence[Row | None] = ()
    around: Surroundings = field(default_factory=Surroundings)

    def process(self, rank: int) -> str:
        """Name a rank, with its process where that has a number of its own."""
        if not self.rows or not 0 <= rank < len(self.rows):
            return f"rank {rank}"
        row = self.rows[rank]
        pid = row["pid"] or row["launched_pid"]
        return f"rank {rank}" if row["is_thread"] or not pid else f"rank {rank} (pid {pid})"

    def whereabouts(self, rank: int) -> str:
        """Say what a rank that has not come did last, or does instead."""
        row = self.rows[rank]
        if self.around.states.get(rank) == "stopped":
            return f"is stopped by a signal; kill -CONT {row['pid'] or row['launched_pid']} lets it go on"
        if row["state"] == "absent":
            return "has ended without joining the group" if self._is_gone(rank) else "has not joined the group"
        if row["is_debugged"]:
            return "stands at a breakpoint"
        if row["mail"] is not None and is_waiting(row["mail"], is_broken=False):
            return f"waits in {formatting.operation(row['mail'])}, begun {_ago(row['mail'])}"
        if rank in self.around.waits:
            return f"waits in {self.around.waits[rank]}; {self._last(row)}"
        return self._last(row)

    def _is_gone(self, rank: int) -> bool:
        return self.around.states.get(rank) == "gone"

    def _last(self, row: Row) -> str:
        entry, begun = row["entry"], row["begun"]
        if begun is not None and begun["device"] == "cuda":
            return f"has called {_called(begun)}, and waits until its GPU has done what it was given before"
        if entry is None and row["arrived"] != 0:  # it was stopped, or killed, between its post and its entry
            return f"has begun collective #{row['arrived']} and not yet written down what it is"
        if entry is None:
            return "has not called anything in this group yet"
        is_over = row["finished"] >= entry["seq"]
        return f"{'left' if is_over else 'is in'} {_called(entry)}, begun {_ago(entry)}"

    def stand(self, rank: int) -> list[tuple[str, str]]:
        """Return lines that say where a rank's program is now, the innermost call first."""
        frames = self.around.stands.get(rank, ())
        if not frames:
            return []
        verb = "is now at" if self.rows[rank]["state"] != "left" else "went on to"
        return [("", f"{verb} {frames[0]}"), *(("", f"  called from {frame}") for frame in frames[1:])]


def _called(entry: Row) -> str:
    called = f"{entry['operation']} #{entry['seq']} {formatting.arguments(entry)}".rstrip()
    return f"{called}, {formatting.place(entry['location'])}" if entry["location"] else called


def _ago(entry: Row) -> str:
    return f"{formatting.seconds(max(entry['seconds_ago'], 0.0))} ago"
