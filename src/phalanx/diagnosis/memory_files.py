"""The memory files of other processes, found and opened through /proc without trusting these processes.

A process can put another file under a descriptor's number at any moment. So this module first gets a reference to the
file with O_PATH, which does not open it: no device reacts, and no pipe blocks. Then it checks the file, and opens
exactly this file.
"""

from __future__ import annotations

import contextlib
import functools
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from phalanx.diagnosis.processes import is_of_this_user, owner_of


@dataclass(frozen=True)
class MemoryFile:
    """An open memory file of a process.

    Attributes:
        pid: The process.
        number: Its descriptor there.
        name: The name that its creator gave it.
        identity: The same for all descriptors of one file.
        owner: The user who made it.
    """

    pid: int
    number: str
    name: str
    identity: tuple[int, int]
    owner: int

    @property
    def is_ours(self) -> bool:
        """Whether file and process belong to the user of this process."""
        return self.owner == os.geteuid() and is_of_this_user(self.pid)


def memory_files(pid: int, prefix: str) -> Iterator[MemoryFile]:
    """Find the memory files of a process whose names have a prefix; none if this process may not see them."""
    try:
        numbers = os.listdir(f"/proc/{pid}/fd")
    except OSError:
        return
    is_ours = is_of_this_user(pid)
    for number in numbers:
        found = None
        with contextlib.suppress(OSError):  # closed meanwhile
            # Compare the name first, because most descriptors are something else.
            name = os.readlink(f"/proc/{pid}/fd/{number}")
            if name.startswith(f"/memfd:{prefix}"):
                found = _look_at_ours(pid, number, name) if is_ours else _look_at(pid, number)
        if found is not None and found.name.startswith(prefix):
            yield found


def _look_at_ours(pid: int, number: str, name: str) -> MemoryFile:
    """Describe a file of a process of the same user. This takes half the time, and launchers do it for thousands."""
    status = os.stat(f"/proc/{pid}/fd/{number}")
    return MemoryFile(pid, number, _short(name), (status.st_dev, status.st_ino), status.st_uid)


def _look_at(pid: int, number: str) -> MemoryFile | None:
    with _pinned(pid, number) as (found, _):
        return found


def open_memory_file(wanted: MemoryFile, *, is_writable: bool = False) -> int | None:
    """Open a memory file that memory_files() found; None if it is gone or another file has taken its place.

    Files of other users are never opened for writing, not even by the superuser.

    Args:
        wanted: What memory_files() has found.
        is_writable: Whether to open it for writing and appending too.
    """
    if is_writable and not wanted.is_ours:
        return None
    flags = os.O_RDWR | os.O_APPEND if is_writable else os.O_RDONLY
    with contextlib.suppress(OSError), _pinned(wanted.pid, wanted.number) as (found, pin):
        if found == wanted:
            return os.open(f"/proc/self/fd/{pin}", flags | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    return None


@contextlib.contextmanager
def _pinned(pid: int, number: str) -> Iterator[tuple[MemoryFile | None, int]]:
    """Get a reference to the file of a descriptor, and describe it; None if it is not a memory file."""
    pin = os.open(f"/proc/{pid}/fd/{number}", os.O_PATH | os.O_CLOEXEC)
    try:
        yield _describe(pid, number, pin), pin
    finally:
        os.close(pin)


def _describe(pid: int, number: str, pin: int) -> MemoryFile | None:
    # A process can make its own file system, give files there any path, and never answer a question about them. So ask
    # the kernel first whether the file is in the kernel's file system for memory files, which nobody can forge.
    mount, device = _memory_place()
    if _mount_of(pin) != mount:
        return None
    status = os.fstat(pin)
    name = os.readlink(f"/proc/self/fd/{pin}")
    if not stat.S_ISREG(status.st_mode) or status.st_dev != device or not name.startswith("/memfd:"):
        return None
    # Accept a file only if the process itself or this process made it.
    if status.st_uid not in (owner_of(pid), os.geteuid()):
        return None
    return MemoryFile(pid, number, _short(name), (status.st_dev, status.st_ino), status.st_uid)


def _short(name: str) -> str:
    return name.removeprefix("/memfd:").removesuffix(" (deleted)")


def _mount_of(descriptor: int) -> str:
    """Return the kernel's number of the mount that a file is in, without asking its file system; empty if unknown."""
    lines = Path(f"/proc/self/fdinfo/{descriptor}").read_text().splitlines()
    return next((line.split()[1] for line in lines if line.startswith("mnt_id:")), "")


@functools.cache
def _memory_place() -> tuple[str, int]:
    """Return the mount and the device of all memory files."""
    descriptor = os.memfd_create("phalanx-probe", os.MFD_CLOEXEC)
    try:
        return _mount_of(descriptor), os.fstat(descriptor).st_dev
    finally:
        os.close(descriptor)
