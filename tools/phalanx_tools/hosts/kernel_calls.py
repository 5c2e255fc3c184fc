"""System calls that Python has no functions for. This module and those that use it start fast: they import little."""

from __future__ import annotations

import ctypes
import os
import select
import signal

NEW_MOUNTS, NEW_NAMES, NEW_IPC = 0x00020000, 0x04000000, 0x08000000
NEW_PROCESSES, NEW_NETWORK = 0x20000000, 0x40000000
NAMESPACES = {"mnt": NEW_MOUNTS, "uts": NEW_NAMES, "ipc": NEW_IPC, "pid": NEW_PROCESSES, "net": NEW_NETWORK}

MOUNT_BIND, MOUNT_RECURSIVE, MOUNT_PRIVATE = 1 << 12, 1 << 14, 1 << 18
_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


def unshare(flags: int) -> None:
    """Give this process new namespaces; that of processes is for its children.

    Raises:
        OSError: It is not permitted.
    """
    _check(_libc.unshare(flags))


def join_namespaces(pid: int, names: tuple[str, ...]) -> None:
    """Move this process into namespaces of another; that of processes is for its children.

    Raises:
        OSError: The other process is gone, or it is not permitted.
    """
    # All are opened first: in other mounts, /proc shows other processes.
    descriptors = {name: os.open(f"/proc/{pid}/ns/{name}", os.O_RDONLY | os.O_CLOEXEC) for name in names}
    for name, descriptor in descriptors.items():
        _check(_libc.setns(descriptor, NAMESPACES[name]))
        os.close(descriptor)


def mount(source: str, target: str, kind: str = "", flags: int = 0) -> None:
    """Mount a file system.

    Raises:
        OSError: It failed.
    """
    _check(_libc.mount(source.encode(), target.encode(), kind.encode() or None, ctypes.c_ulong(flags), None))


def die_with(parent: int) -> None:
    """Have the kernel kill this process when its parent dies.

    Args:
        parent: A descriptor of the parent, opened before the fork: it may be dead already. It has one thread.
    """
    _libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
    if select.select([parent], [], [], 0)[0]:  # it died before the kernel knew
        os._exit(1)


def _check(result: int) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
