"""What ranks are doing, read from the shared memory of their groups."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from phalanx.engine import GroupSegment
from phalanx.jobs.rank import JobRank
from phalanx.launch.world_watch import WorldWatch

if TYPE_CHECKING:
    from phalanx.diagnosis.observation import Observation
    from phalanx.diagnosis.views import JobView

# A rank that can answer does so in milliseconds, or later on a busy machine. One that can't costs all of this time.
_STACKS_S = 2.0


class JobWatch(WorldWatch):
    """The groups of a job, and what the ranks do in them."""

    def __init__(self, world: GroupSegment) -> None:
        super().__init__(world)
        self._looked_at = time.monotonic()

    def note_activity(self, ranks: Sequence[JobRank]) -> None:
        """Find out what every running rank is doing."""
        self.look(ranks)
        now = time.monotonic()
        elapsed_s, self._looked_at = max(now - self._looked_at, 1e-3), now
        for rank in ranks:
            if not rank.is_running:
                continue
            activity = self.observer.activity(rank.pid)
            rank.doing, rank.waits_for = activity.doing, activity.waits_for
            rank.operations_per_s = max(0, activity.num_operations - rank.num_operations) / elapsed_s
            rank.bytes_per_s = max(0, activity.moved_bytes - rank.moved_bytes) / elapsed_s
            rank.num_operations, rank.moved_bytes = activity.num_operations, activity.moved_bytes

    def describe(self, ranks: Sequence[JobRank], job: JobView, why: str) -> Observation:
        """Return an observation of all groups and the stacks of the ranks, and note where each rank is."""
        from phalanx.diagnosis.findings import place_of
        from phalanx.diagnosis.observation import describe

        self.look(ranks)
        running = [rank.pid for rank in ranks if rank.is_running]
        seen = describe(self.groups_to_describe(), running, job, with_stacks=True, timeout_s=_STACKS_S)
        seen.reason = why
        places = {process.pid: place_of(process) for process in seen.processes}
        for rank in ranks:
            rank.place = places.get(rank.pid, "")
        return seen

    def groups_to_describe(self) -> list[GroupSegment]:
        """Return the groups that were found, and the world if ranks have used it: they may all have ended by now."""
        found = self.observer.groups
        is_missing = all(group.nonce != self.world.nonce for group in found)
        was_used = any(row.pid for row in self.world.snapshot())
        return [self.world, *found] if is_missing and was_used else found
