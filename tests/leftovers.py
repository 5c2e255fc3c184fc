"""What ranks could leave behind, seen from the process that started them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path


def children(pid: int) -> list[int]:
    found: list[int] = []
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            found += map(int, (task / "children").read_text().split())
        except (FileNotFoundError, ProcessLookupError):  # the thread ended while we looked
            continue
    return found


def rank_processes() -> list[int]:
    """The grandchildren: ranks are children of the process they are forked from, which is ours."""
    found = []
    for child in children(os.getpid()):
        try:
            found += children(child)
        except FileNotFoundError:  # it ended while we looked
            continue
    return found


def open_descriptors() -> list[str]:
    """What this process has open, but for what stays on purpose: the memory of stacks and that of torch's stores."""
    targets = []
    for name in os.listdir("/proc/self/fd"):
        try:
            targets.append(os.readlink(f"/proc/self/fd/{name}"))
        except FileNotFoundError:  # the one that lists the folder
            continue
    return [target for target in targets if "phalanx-stacks" not in target and "phalanx-store" not in target]


def group_memory() -> list[str]:
    """Segments this process holds open or mapped."""
    mapped = [line.split(maxsplit=5)[-1] for line in Path("/proc/self/maps").read_text().splitlines()]
    return [name for name in [*open_descriptors(), *mapped] if "memfd:phalanx" in name or ":symmetric" in name]


def named_memory() -> set[str]:
    return {name for name in os.listdir("/dev/shm") if "phalanx" in name}


def wait_until(condition: Callable[[], bool], timeout_s: float = 30) -> bool:
    """Poll for something another process does; tell whether it came true in time."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.002)
    return True
