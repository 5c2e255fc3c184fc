"""Groups as seen from outside, found through /proc: who is in them, what each rank does, and a way to break them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from phalanx.diagnosis import formatting
from phalanx.diagnosis.memory_files import MemoryFile, memory_files, open_memory_file
from phalanx.diagnosis.waits import Wait, find_waits, world_of
from phalanx.engine import GroupSegment

GROUP_PREFIX = "phalanx:"
JOB_RECORD = "phalanx-job"
_MOST_RANKS = 1 << 17  # of all groups together: whose memory this is may have made it for us to choke on


@dataclass(frozen=True)
class Activity:
    """What a rank does at the moment.

    Attributes:
        doing: The operation it is in, such as "all_reduce #5, train.py:61"; empty when it is in none.
        waits_for: The ranks of the world that it waits for there.
        num_operations: Collectives and messages since it started.
        moved_bytes: What they carried.
    """

    doing: str = ""
    waits_for: tuple[int, ...] = ()
    num_operations: int = 0
    moved_bytes: int = 0


class Observer:
    """The groups of some processes. Not for several threads.

    Args:
        is_writable: Whether it may break groups, not only look at them; then it sees only those of this user.
    """

    def __init__(self, *, is_writable: bool = True) -> None:
        self._is_writable = is_writable
        self._groups: dict[tuple[int, int], GroupSegment] = {}
        self._strange: set[tuple[int, int]] = set()
        self._views: list[dict[str, Any]] = []
        self._all_waits: list[Wait] = []
        self._waits: dict[int, Wait] = {}  # by process

    @property
    def groups(self) -> list[GroupSegment]:
        """The groups found so far; those that everybody has left are forgotten."""
        return list(self._groups.values())

    @property
    def waits(self) -> list[Wait]:
        """Who waited for whom at the last look."""
        return list(self._all_waits)

    @property
    def num_strange(self) -> int:
        """How many were found that are of another version of phalanx, or damaged."""
        return len(self._strange)

    def look(self, pids: Iterable[int]) -> None:
        """Find the groups that these processes are in now, and what everybody does in them."""
        seen = set()
        for pid in pids:
            for found in memory_files(pid, GROUP_PREFIX):
                seen.add(found.identity)
                if found.identity not in self._groups and found.identity not in self._strange:
                    self._attach(found)
        for identity in self._groups.keys() - seen:
            if all(row["state"] == "left" for row in self._groups[identity].snapshot()):
                del self._groups[identity]
        self._views = [view_of(group) for group in self._groups.values()]
        self._all_waits = find_waits(self._views, world_of(self._views))
        self._waits = {wait.key[0]: wait for wait in reversed(self._all_waits)}

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
        """Say what a process does, as of the last look."""
        rows = [row for view in self._views for row in view["rows"] if row["pid"] == pid]
        wait = self._waits.get(pid)
        return Activity(
            wait.text if wait is not None else _doing(self._views, pid),
            wait.waits_for if wait is not None else (),
            sum(row["finished"] + row["messages"] for row in rows),
            sum(row["moved_bytes"] for row in rows),
        )

    def declare_dead(self, pid: int, status: int) -> None:
        """Tell every group of a process that it is gone, and how: an exit code, or 256 + signal."""
        for group, row in self._places_of(pid):
            if not row["is_thread"]:
                group.declare_dead(row["rank"], status)

    def fail(self, pid: int, why: str) -> None:
        """Break every group of a process that has raised."""
        for group, row in self._places_of(pid):
            if row["state"] != "left":
                group.fail(row["rank"], why)

    def _places_of(self, pid: int) -> list[tuple[GroupSegment, Mapping[str, Any]]]:
        return [
            (group, row)
            for group in self._groups.values()
            for row in group.snapshot()
            if pid in (row["pid"], 0 if row["pid"] else row["launched_pid"])
        ]

    def close(self) -> None:
        """Let go of the memory."""
        with contextlib.suppress(AttributeError):
            self._groups.clear()
        self._views.clear()


def view_of(group: GroupSegment) -> dict[str, Any]:
    """Return all that is known of a group but its past, as plain data."""
    return {
        "name": group.name,
        "nonce": group.nonce.hex(),
        "num_ranks": group.num_ranks,
        "fault": group.fault(),
        "rows": group.snapshot(),
    }


def _doing(views: Iterable[Mapping[str, Any]], pid: int) -> str:
    for view in views:
        for row in view["rows"]:
            entry = row["entry"]
            if row["pid"] == pid and entry is not None and row["finished"] < entry["seq"] and view["fault"] is None:
                return formatting.operation(entry)
    return ""
