"""The groups of a running test as seen from outside: who waits in which of them, and a way to break them all."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from phalanx.diagnosis import formatting
from phalanx.engine import GroupSegment


class WatchedGroups:
    """Memory of groups that ranks of a test have made; the world's comes first."""

    def __init__(self, world: GroupSegment) -> None:
        self._groups = [world]
        self._known = {os.fstat(world.descriptor).st_ino} if world.descriptor >= 0 else set()

    def add(self, descriptor: int) -> None:
        """Take note of a group; the descriptor stays the caller's."""
        number = os.fstat(descriptor).st_ino
        if number not in self._known:
            self._known.add(number)
            self._groups.append(GroupSegment.attach(descriptor))

    def declare_dead(self, pid: int, status: int) -> None:
        """Tell every group that a process is gone, and how."""
        for group in self._groups:
            for row in group.snapshot():
                if row["pid"] == pid and not row["is_thread"]:
                    group.declare_dead(row["rank"], status)

    def fail(self, rank: int, pid: int, why: str) -> None:
        """Break the world, and every group that this rank's process is in."""
        world, *others = self._groups
        if world.snapshot()[rank]["state"] != "left":  # also when it has not joined yet: others may wait for it
            world.fail(rank, why)
        for group in others:
            for row in group.snapshot():
                if row["pid"] == pid and row["state"] != "left":
                    group.fail(row["rank"], why)

    def doing(self, pid: int) -> str:
        """Say which operation a process waits in; empty when in none."""
        for group in self._groups:
            for row in () if group.is_broken else group.snapshot():  # nobody waits in a broken group any more
                if row["pid"] == pid:
                    text = describe(row)
                    if text:
                        return text if group is self._groups[0] else f'{text} of group "{group.name}"'
        return ""

    def close(self) -> None:
        """Let go of the memory."""
        for group in self._groups[1:]:
            group.close_descriptor()
        self._groups.clear()


def describe(row: Mapping[str, Any]) -> str:
    """Say what a rank of a group waits in; empty when it does not."""
    entry = row["mail"]
    if entry is None:
        entry = row["entry"]
        if entry is None or row["finished"] >= entry["seq"] or row["state"] not in ("present", "dead"):
            return ""
    number = "" if row["mail"] is not None else f" #{entry['seq']}"
    where = f", {formatting.place(entry['location'])}" if entry["location"] else ""
    return f"waiting in {entry['operation']}{number}{where}"
