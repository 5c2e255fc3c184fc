"""Probes of the machine: cores, memory, /dev/shm."""

from __future__ import annotations

import collections
import os
import re
import resource
from pathlib import Path

from phalanx.byte_sizes import format_size
from phalanx.doctor.finding import Answer, Probe, Topic
from phalanx.scarcity import MORE_ADDRESS_SPACE

_LITTLE_MEMORY_BYTES = 1 << 30  # two ranks that have imported torch, and something to work with
_NO_MEMORY_BYTES = 64 << 20
_LITTLE_SHM_BYTES = 256 << 20  # containers get 64 MiB unless somebody asks for more


def cores(process: str = "/proc/self") -> Answer:
    """Compare the cores that this process may use with all cores, and with the quota of its control group."""
    from phalanx.engine._native import ControlGroups

    usable, present = len(os.sched_getaffinity(0)), os.cpu_count() or 1
    quota = ControlGroups(process).cores()
    text = f"{usable} usable of {present}"
    if quota is not None and quota < usable:
        return Answer(
            "note",
            f"{text}, but the control group grants the time of {quota:.3g}: busy ranks are stopped now and then",
            f"Use at most {max(1, int(quota))} ranks, or give the container more than {quota:.3g} cores.",
        )
    if usable < present:
        text += "; the others are kept from this process (affinity or cpuset)"
    elif usable == 1:
        text += ": ranks take turns"
    return Answer("ok", text)


def memory(process: str = "/proc/self") -> Answer:
    """Say how much memory ranks can have, and what limits it."""
    from phalanx.engine._native import ControlGroups, available_memory_bytes

    available, limit = available_memory_bytes(process), ControlGroups(process).memory_limit_bytes()
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    text = f"{format_size(available)} available of {format_size(total)}"
    if limit is not None and limit < total:
        text += f"; the control group allows {format_size(limit)}"
    advice = "Free memory or raise its limit: a group takes up to 8 MiB a rank, torch far more."
    if available == resource.getrlimit(resource.RLIMIT_AS)[0]:
        text, advice = f"{text}; the address space allows no more", MORE_ADDRESS_SPACE
    if available < _LITTLE_MEMORY_BYTES:
        return Answer("problem" if available < _NO_MEMORY_BYTES else "note", text, advice)
    return Answer("ok", text)


def shared_memory_folder(folder: Path = Path("/dev/shm")) -> Answer:
    """Say how large the folder of shared memory is, and what lies in it. phalanx itself does not use it."""
    why = "phalanx does without it; DataLoader workers, NCCL and other engines do not"
    if not folder.is_dir():
        return Answer("note", f"not there: {why}", f"Mount a tmpfs at {folder} if you use DataLoader workers or NCCL.")
    if not os.access(folder, os.W_OK):
        return Answer("note", f"not writable: {why}", f"Make {folder} writable if you use DataLoader workers or NCCL.")
    room = os.statvfs(folder)
    size, free = room.f_blocks * room.f_frsize, room.f_bavail * room.f_frsize
    text = f"{format_size(free)} free of {format_size(size)}{_whose(folder)}"
    if free < _LITTLE_SHM_BYTES:
        advice = "Start the container with a larger --shm-size if you use DataLoader workers or NCCL."
        if size >= _LITTLE_SHM_BYTES:
            advice = f"Remove what nobody uses any more from {folder} if you use DataLoader workers or NCCL."
        return Answer("note", f"{text}; {why}", advice)
    return Answer("ok", f"{text}; phalanx does without it")


def _whose(folder: Path) -> str:
    """Name the kinds of files that take most, by the beginning of their names."""
    sizes = collections.Counter[str]()
    for entry in os.scandir(folder):
        try:
            sizes[re.split(r"[-_.\d]", entry.name.lstrip("._"))[0] or entry.name] += entry.stat().st_blocks * 512
        except OSError:  # gone since
            continue
    names = [f"{name}* {format_size(size)}" for name, size in sizes.most_common(3) if size]
    return f" ({', '.join(names)})" if names else ""


TOPIC = Topic(
    "Machine",
    (
        Probe("cores", cores, is_needed=False),
        Probe("memory", memory, is_needed=False),
        Probe("/dev/shm", shared_memory_folder, is_needed=False),
    ),
)
