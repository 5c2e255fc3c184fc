"""The groups of ranks as their launcher sees them from outside: it can read their state, and break them."""

from __future__ import annotations

from collections.abc import Sequence

from phalanx.diagnosis.formatting import ELSEWHERE
from phalanx.diagnosis.observer import Observer
from phalanx.engine import GroupSegment
from phalanx.launch.rank import Rank


class WorldWatch:
    """The world of some ranks, which exists before they join it, and the other groups that they have made.

    Attributes:
        world: The memory of the world.
        observer: The object that finds the groups of the ranks.
    """

    def __init__(self, world: GroupSegment) -> None:
        self.world = world
        self.observer = Observer()

    def note_start(self, rank: Rank) -> None:
        """Write the process of a rank into the world, before the rank joins the world itself."""
        self.world.launched(rank.index, rank.pid)

    def look(self, ranks: Sequence[Rank]) -> None:
        """Find the groups that running ranks are in now."""
        self.observer.look([rank.pid for rank in ranks if rank.is_running])

    def groups(self) -> list[GroupSegment]:
        """Return the world, and the other groups found so far."""
        return [self.world, *(group for group in self.observer.groups if group.nonce != self.world.nonce)]

    def fail(self, rank: Rank, why: str) -> None:
        """Tell all ranks that wait for a rank why it will not come."""
        self.world.fail(rank.index, why)
        if rank.is_running:
            self.look([rank])
            self.observer.fail(rank.pid, why)

    def fail_elsewhere(self, ranks: Sequence[Rank], why: str) -> None:
        """Tell all ranks why no rank will come, because of something on another host."""
        text = ELSEWHERE + why
        self.world.fail(-1, text)
        self.look(ranks)
        for group in self.groups():
            if not group.is_broken:
                group.fail(-1, text)

    def declare_dead(self, rank: Rank) -> None:
        """Tell all ranks that wait for a rank how its process has ended."""
        self.world.declare_dead(rank.index, rank.status or 0)
        if rank.pid:
            self.observer.declare_dead(rank.pid, rank.status or 0)

    def close(self) -> None:
        """Close the groups, except for the world, which its creator closes."""
        self.observer.close()
