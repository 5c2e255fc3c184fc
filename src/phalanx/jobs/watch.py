"""What ranks do right now, read from the shared memory of their groups."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from phalanx.engine import GroupSegment, create_group_segment
from phalanx.jobs.rank import Rank

if TYPE_CHECKING:
    from phalanx.diagnosis.observation import Observation
    from phalanx.diagnosis.observer import Observer
    from phalanx.diagnosis.waits import Wait

WORLD_NAME = "world"
_STACKS_S = 0.2  # others wait to be told that a rank has failed


class Watch:
    """An outside view of all groups of a job. The world's segment is known even to ranks that never came to it."""

    def __init__(self) -> None:
        self._world: GroupSegment | None = None
        self._observer: Observer | None = None
        self._looked_at = time.monotonic()

    def open_world(self, num_ranks: int) -> int:
        """Make the memory that all ranks share from the beginning, and return its descriptor.

        Raises:
            SharedMemoryError: The machine has not got it.
        """
        self._world = create_group_segment(WORLD_NAME, num_ranks, crowd=num_ranks)
        return self._world.descriptor

    def note_ranks(self, ranks: Sequence[Rank]) -> None:
        """Let the world know who its ranks are, before they come to it themselves."""
        assert self._world is not None
        for rank in ranks:
            self._world.launched(rank.number, rank.pid)

    def look(self, ranks: Sequence[Rank]) -> None:
        """Find out what every running rank does."""
        running = [rank for rank in ranks if rank.is_running]
        observer = self._look(running)
        now = time.monotonic()
        elapsed_s, self._looked_at = max(now - self._looked_at, 1e-3), now
        for rank in running:
            activity = observer.activity(rank.pid)
            rank.doing, rank.waits_for = activity.doing, activity.waits_for
            rank.operations_per_s = max(0, activity.num_operations - rank.num_operations) / elapsed_s
            rank.bytes_per_s = max(0, activity.moved_bytes - rank.moved_bytes) / elapsed_s
            rank.num_operations, rank.moved_bytes = activity.num_operations, activity.moved_bytes

    @property
    def waits(self) -> list[Wait]:
        """Who waited for whom at the last look."""
        return self._observer.waits if self._observer is not None else []

    def describe(self, ranks: Sequence[Rank], job: dict[str, Any], why: str) -> Observation | None:
        """Write down all groups and where the ranks stand; None when there are no groups."""
        from phalanx.diagnosis.observation import describe

        running = [rank.pid for rank in ranks if rank.is_running]
        groups = self._look([rank for rank in ranks if rank.is_running]).groups
        if not groups:
            return None
        seen = describe(groups, running, job, with_stacks=True, timeout_s=_STACKS_S)
        seen.reason = why
        return seen

    def tell_failure(self, rank: Rank, why: str) -> None:
        """Let all who wait for a rank know that it will not come."""
        assert self._world is not None
        self._world.fail(rank.number, why)
        if rank.is_running:
            self._look([rank]).fail(rank.pid, why)

    def tell_death(self, rank: Rank) -> None:
        """Let all who wait for a rank know that its process has ended."""
        assert self._world is not None
        status = rank.status or 0
        self._world.declare_dead(rank.number, status)
        if self._observer is not None:
            self._observer.declare_dead(rank.pid, status)

    def close(self) -> None:
        """Let go of all groups."""
        if self._observer is not None:
            self._observer.close()
        if self._world is not None:
            self._world.close_descriptor()

    def _look(self, ranks: Sequence[Rank]) -> Observer:
        if self._observer is None:
            from phalanx.diagnosis.observer import Observer

            self._observer = Observer()
        self._observer.look([rank.pid for rank in ranks])
        return self._observer
