"""The process that keeps the hosts of a bed alive. When it ends, all that runs on them ends, and nothing is left.

A host is a process, its *init*, with namespaces of its own: network, processes, mounts, host name, System V IPC. The
kernel ends every process of a host with its init. The init ends with the keeper, and the keeper with the owner of the
bed, even if the owner is killed. No namespace gets a name and nothing is written to a folder, so nothing has to be
removed.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import sys
from pathlib import Path

from phalanx_tools.hosts import kernel_calls

_NETWORK_AND_PROCESSES = kernel_calls.NEW_NETWORK | kernel_calls.NEW_PROCESSES
_ALL = sum(kernel_calls.NAMESPACES.values())
_CONTROL_GROUPS = "/sys/fs/cgroup"


def main(owner: str, hosts_files: str) -> None:
    """Start the switch and the hosts, print the process id of each, and wait for the end of the owner.

    Args:
        owner: The process id of the owner of the bed.
        hosts_files: In JSON, the text of /etc/hosts for each host, by the host's name.
    """
    watch = os.pidfd_open(int(owner))
    if os.getppid() != int(owner):  # the number may be another process's by now
        return
    files: dict[str, str] = json.loads(hosts_files)
    pids = [_start("", ""), *(_start(name, text) for name, text in files.items())]
    print(json.dumps(pids), flush=True)
    select.select([watch, sys.stdin], [], [])


def _start(name: str, hosts_file: str) -> int:
    """Start a host, or the switch if it has no name, and return the process id of its init.

    A process in between makes the namespaces, because a process can make a namespace of processes once only.
    """
    reader, writer = os.pipe()
    keeper = os.pidfd_open(os.getpid())
    if os.fork() == 0:
        os.close(reader)
        kernel_calls.die_with(keeper)
        kernel_calls.unshare(_ALL if name else _NETWORK_AND_PROCESSES)
        middle = os.pidfd_open(os.getpid())
        init = os.fork()
        if init == 0:
            _be_init(middle, writer, name, hosts_file)
        os.write(writer, f"{init} ".encode())
        os.close(writer)
        os.waitpid(init, 0)
        os._exit(0)
    os.close(writer)
    os.close(keeper)
    with open(reader) as answer:
        words = answer.read().split(maxsplit=1)  # ends when the init is ready
    if len(words) != 1:
        sys.exit(f"{name or 'the switch'} can't be made: {words[1] if words else 'no namespaces'}")
    return int(words[0])


def _be_init(middle: int, writer: int, name: str, hosts_file: str) -> None:
    try:
        kernel_calls.die_with(middle)
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
        os.setsid()
        _detach_standard_streams()
        if name:
            _furnish(name, hosts_file)
    except OSError as error:
        os.write(writer, str(error).encode())
        os._exit(1)
    os.close(writer)
    while True:
        signal.sigwait({signal.SIGCHLD})
        _bury_orphans()


def _detach_standard_streams() -> None:
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nowhere, descriptor)


def _bury_orphans() -> None:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return


def _furnish(name: str, hosts_file: str) -> None:
    """Give the host its name, a /proc, a /sys and a /dev/shm of its own, and its /etc/hosts."""
    socket.sethostname(name)
    kernel_calls.mount("none", "/", flags=kernel_calls.MOUNT_RECURSIVE | kernel_calls.MOUNT_PRIVATE)
    groups = os.open(_CONTROL_GROUPS, os.O_PATH) if os.path.ismount(_CONTROL_GROUPS) else None
    kernel_calls.mount("sysfs", "/sys", "sysfs")
    if groups is not None:
        recursively = kernel_calls.MOUNT_BIND | kernel_calls.MOUNT_RECURSIVE
        kernel_calls.mount(f"/proc/self/fd/{groups}", _CONTROL_GROUPS, flags=recursively)
        os.close(groups)
    kernel_calls.mount("proc", "/proc", "proc")
    # Every kernel has Reno. The pacing of others depends on the machine's timers, which a busy machine serves late.
    Path("/proc/sys/net/ipv4/tcp_congestion_control").write_text("reno")
    # The file's memory is that of a file system which only this mount namespace has.
    kernel_calls.mount("tmpfs", "/dev/shm", "tmpfs")
    file = Path("/dev/shm/hosts")
    file.write_text(hosts_file)
    kernel_calls.mount(str(file), "/etc/hosts", flags=kernel_calls.MOUNT_BIND)
    kernel_calls.mount("tmpfs", "/dev/shm", "tmpfs")
