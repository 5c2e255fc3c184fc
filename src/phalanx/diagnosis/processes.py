"""What /proc says about processes of the same user, without ptrace, root or help from the process itself."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

_PROC = Path("/proc")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
# Fields of /proc/<pid>/stat after the command's name.
_STATE, _PARENT, _START = 0, 1, 19

_STATES = {
    "R": "running",
    "S": "sleeping",
    "D": "waiting for a device",
    "T": "stopped by a signal",
    "t": "stopped by a debugger",
    "Z": "ended, not reaped",
    "X": "ended",
    "I": "idle",
}


def is_alive(pid: int) -> bool:
    """Tell whether the process runs."""
    return state_of(pid) not in ("", "Z", "X")


def is_readable(pid: int) -> bool:
    """Tell whether this process may read about it: it runs, and belongs to the same user."""
    return os.access(_PROC / str(pid) / "fd", os.R_OK)


def owner_of(pid: int) -> int | None:
    """Return the user that a process belongs to; None when there is no such process."""
    try:
        return (_PROC / str(pid)).stat().st_uid
    except OSError:
        return None


def is_of_this_user(pid: int) -> bool:
    """Tell whether a process belongs to the same user, and no other user started it."""
    user = os.geteuid()
    # A set-uid program is shown as root's, but another user started it and chose its arguments.
    return owner_of(pid) == user and (user != 0 or _users_of(pid) == {0})


def _users_of(pid: int) -> set[int]:
    """Return all users whose rights a process has or could take back; none when it is gone."""
    return {int(number) for line in _status_lines(pid) if line.startswith(b"Uid:") for number in line.split()[1:]}


def visible_pids() -> list[int]:
    """Return the processes that this one may read about: those of its user, or all if it is root."""
    user = os.geteuid()
    return [
        int(entry.name)
        for entry in os.scandir(_PROC)
        if entry.name.isdigit() and (user == 0 or _belongs_to(entry, user))
    ]


def _belongs_to(entry: os.DirEntry[str], user: int) -> bool:
    try:
        return entry.stat().st_uid == user
    except OSError:  # it has just ended
        return False


def _stat_fields(pid: int | str) -> list[str]:
    try:
        content = (_PROC / str(pid) / "stat").read_bytes()
    except OSError:
        return []
    # The name before it may contain any bytes: the kernel cuts it to 15 bytes, even inside a character.
    return content.rpartition(b")")[2].decode().split()


def state_of(pid: int) -> str:
    """Return the kernel's letter for what a process does; empty when there is none."""
    fields = _stat_fields(pid)
    return fields[_STATE] if fields else ""


def describe_state(letter: str) -> str:
    """Describe the state of a process in words."""
    return _STATES.get(letter, "gone")


def start_of(pid: int) -> int:
    """Return when a process began, in ticks of the kernel's clock since the machine started; 0 if there is none."""
    fields = _stat_fields(pid)
    return int(fields[_START]) if fields else 0


def parent_of(pid: int | str) -> int:
    """Return the parent of a process; 0 when there is none."""
    fields = _stat_fields(pid)
    return int(fields[_PARENT]) if fields else 0


def children_of(pid: int | str) -> list[int]:
    """Return the ids of a process's children."""
    return [child for thread in threads_of(pid) for child in children_of_thread(pid, thread)]


def children_of_thread(pid: int | str, thread: int) -> list[int]:
    """Return the ids of the processes that a thread of a process has started."""
    with contextlib.suppress(OSError):  # the thread has ended
        return [int(word) for word in (_PROC / f"{pid}/task/{thread}/children").read_text().split()]
    return []


def descendants_of(pid: int, most: int) -> list[int]:
    """Return the ids of a process's children and of theirs, the nearest first, but not more than `most`."""
    found = children_of(pid)
    for child in found:  # it grows meanwhile
        if len(found) >= most:
            break
        found += children_of(child)
    return found[:most]


def command_of(pid: int) -> list[str]:
    """Return the command line of a process."""
    try:
        words = (_PROC / str(pid) / "cmdline").read_bytes().split(b"\0")
    except OSError:
        return []
    return [word.decode(errors="replace") for word in words if word]


def resident_bytes(pid: int) -> int:
    """Return how much memory a process uses; 0 if it is gone."""
    try:
        return int((_PROC / str(pid) / "statm").read_text().split()[1]) * _PAGE_BYTES
    except (OSError, IndexError):
        return 0


def threads_of(pid: int | str) -> list[int]:
    """Return the kernel's numbers of the threads of a process, the main one first."""
    with contextlib.suppress(OSError):
        numbers = [int(entry.name) for entry in os.scandir(_PROC / str(pid) / "task")]
        return sorted(numbers, key=lambda number: number != pid)
    return []


def catches(pid: int, number: int) -> bool:
    """Tell whether a process has a handler for a signal, which would otherwise end it."""
    return _has_signal(f"{pid}", "SigCgt", number)


def blocks(pid: int, thread: int, number: int) -> bool:
    """Tell whether a thread lets a signal wait, as it does while it runs the handler of that signal."""
    return _has_signal(f"{pid}/task/{thread}", "SigBlk", number)


def has_waiting(pid: int, thread: int, number: int) -> bool:
    """Tell whether a thread has been sent a signal that it has not handled yet."""
    return _has_signal(f"{pid}/task/{thread}", "SigPnd", number)


def _has_signal(process: str, mask: str, number: int) -> bool:
    masks = [int(line.split()[1], 16) for line in _status_lines(process) if line.startswith(f"{mask}:".encode())]
    return bool(masks and masks[0] >> (number - 1) & 1)


def _status_lines(process: int | str) -> list[bytes]:
    try:
        return (_PROC / str(process) / "status").read_bytes().split(b"\n")
    except OSError:
        return []
