"""Groups of other processes, found through /proc: their members, what each rank does, and a way to break them."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass

from phalanx.diagnosis.memory_files import MemoryFile, memory_files, open_memory_file
from phalanx.diagnosis.views import GroupView, view_of
from phalanx.diagnosis.waits import Wait, find_waits, world_of
from phalanx.engine import GroupSegment
from phalanx.engine.facts import EntryFacts, RankFacts

GROUP_PREFIX = "phalanx:"
JOB_RECORD = "phalanx-job"
_MOST_RANKS = 1 << 17  # in all groups together: a hostile process may have made groups that are too large


@dataclass(frozen=True)
class Activity:
    """What a rank is doing.

    Attributes:
        doing: The operation it is in; None when it is in none.
        waits_for: The ranks of the world that it waits for in this operation.
        num_operations: Collectives and messages since it started.
        moved_bytes: What they carried.
    """

    doing: EntryFacts | None = None
    waits_for: tuple[int, ...] = ()
    num_operations: int = 0
    moved_bytes: int = 0


class Observer:
    """The groups of some processes. Threads must not share it.

    Args:
        is_writable: Whether it may break groups, not only look at them; then it sees only those of this user.
    """

    def __init__(self, *, is_writable: bool = True) -> None:
        self._is_writable = is_writable
        self._groups: dict[tuple[int, int], GroupSegment] = {}
        self._strange: set[tuple[int, int]] = set()
        self._views: list[GroupView] = []
        self._all_waits: list[Wait] = []
        self._waits: dict[int, Wait] = {}  # by process

    @property
    def groups(self) -> list[GroupSegment]:
        """The groups found so far, without those that all ranks have left."""
        return list(self._groups.values())

    @property
    def waits(self) -> list[Wait]:
        """Which rank waited for which, as of the last look()."""
        return list(self._all_waits)

    @property
    def num_strange(self) -> int:
        """The number of groups that are damaged or of another version of phalanx."""
        return len(self._strange)

    def look(self, pids: Iterable[int]) -> None:
        """Find the groups that these processes are in, and what each rank does in them."""
        seen = set()
        for pid in pids:
            for found in memory_files(pid, GROUP_PREFIX):
                seen.add(found.identity)
                if found.identity not in self._groups and found.identity not in self._strange:
                    self._attach(found)
        for identity in self._groups.keys() - seen:
            if all(row.state == "left" for row in self._groups[identity].snapshot()):
                del self._groups[identity]
        self._views = [view_of(group) for group in self._groups.values()]
        self._all_waits = find_waits(self._views, world_of(self._views))
        self._waits = {wait.key[0]: wait for wait in reversed(self._all_waits)}

    def follow_waits(self, pids: Iterable[int], most_processes: int, longest_s: float) -> set[int]:
        """Look at these processes, then at those that they wait for, and so on; return the processes looked at.

        Args:
            pids: The processes to begin with.
            most_processes: How many to look at, at most.
            longest_s: When not to look at any more.
        """
        seen = further = set(pids)
        deadline = time.monotonic() + longest_s
        while True:
            self.look(further)
            waits = find_waits(self._views, world_of(self._views), also_broken=True)
            reached = new = set(seen)
            while new:  # also through ranks of which these groups tell
                new = {key[0] for wait in waits if wait.key[0] in new for key in wait.keys} - reached - {0}
                reached = reached | new
            further = set(sorted(reached - seen)[: max(0, most_processes - len(seen))])
            if not further or time.monotonic() > deadline:
                return seen
            seen = seen | further

    def _attach(self, found: MemoryFile) -> None:
        descriptor = open_memory_file(found, is_writable=self._is_writable)
        if descriptor is None:
            return
        try:
            group = GroupSegment.attach(descriptor, is_writable=self._is_writable)
            if sum(each.num_ranks for each in self._groups.values()) + group.num_ranks > _MOST_RANKS:
                self._strange.add(found.identity)
            else:
                self._groups[found.identity] = group
        except (RuntimeError, MemoryError, OSError):
            self._strange.add(found.identity)
        finally:
            os.close(descriptor)

    def activity(self, pid: int) -> Activity:
        """Return what a process does, as of the last look()."""
        rows = [row for view in self._views for row in view.rows if row.pid == pid]
        wait = self._waits.get(pid)
        return Activity(
            wait.entry if wait is not None else _doing(self._views, pid),
            wait.waits_for if wait is not None else (),
            sum(row.finished + row.messages for row in rows),
            sum(row.moved_bytes for row in rows),
        )

    def declare_dead(self, pid: int, status: int) -> None:
        """Mark a process as dead in all its groups, with its exit code or 256 + signal."""
        for group, row in self._places_of(pid):
            if not row.is_thread:
                group.declare_dead(row.rank, status)

    def fail(self, pid: int, why: str) -> None:
        """Break every group of a process that has raised."""
        for group, row in self._places_of(pid):
            if row.state != "left":
                group.fail(row.rank, why)

    def _places_of(self, pid: int) -> list[tuple[GroupSegment, RankFacts]]:
        return [
            (group, row)
            for group in self._groups.values()
            for row in group.snapshot()
            if pid in (row.pid, 0 if row.pid else row.launched_pid)
        ]

    def close(self) -> None:
        """Unmap the memory of all groups."""
        with contextlib.suppress(AttributeError):
            self._groups.clear()
        self._views.clear()


def _doing(views: Iterable[GroupView], pid: int) -> EntryFacts | None:
    return next(
        (
            row.collective
            for view in views
            if view.fault is None
            for row in view.rows
            if row.pid == pid and row.collective is not None
        ),
        None,
    )
