"""Memory of processes that share pages: each page counts once, divided among those who have it."""

from __future__ import annotations

from pathlib import Path


def proportional_bytes(pid: int | str) -> int:
    """Return a process's share."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    return 0


def children_of(pid: int | str) -> list[int]:
    """Return the ids of a process's children."""
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        found += [int(text) for text in (task / "children").read_text().split()]
    return found
