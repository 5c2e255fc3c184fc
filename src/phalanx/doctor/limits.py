"""Probes of the limits of a process: open files, processes, locked memory, address space."""

from __future__ import annotations

import os
import resource

from phalanx.byte_sizes import format_size
from phalanx.doctor.finding import Answer, Probe, Topic
from phalanx.scarcity import MORE_ADDRESS_SPACE, has_small_address_space, more_open_files

_OTHER_FILES = 24  # what Python, torch and the launcher have open themselves, with room to import
_FILES_OF_A_RANK = 2  # the launcher holds both ends of a pipe for each; a rank, one descriptor for each peer
_FEW_FILES = 1024
_FEW_PROCESSES = 256
_TOO_FEW_PROCESSES = 8


def open_files() -> Answer:
    """Say how many ranks the limit of open files has room for."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft >= _FEW_FILES or soft == resource.RLIM_INFINITY:
        return Answer("ok", f"{_count(soft)} a process")
    num_ranks = max(0, (soft - _OTHER_FILES) // _FILES_OF_A_RANK)
    text = f"{soft} a process, room for about {num_ranks} ranks"
    return Answer("problem" if num_ranks < 2 else "note", text, more_open_files())


def processes(process: str = "/proc/self") -> Answer:
    """Say how many processes may be started, by the user's limit and by the control group's."""
    from phalanx.engine._native import ControlGroups

    soft, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    left = ControlGroups(process).processes_left()
    is_exempt = os.geteuid() == 0 and _is_first_namespace()
    limit = f"{_count(soft)} of this user" + (", but root may start any number" if is_exempt else "")
    text = limit if left is None else f"{limit}; the control group has room for {left} more"
    room = min(2**31 if is_exempt or soft == resource.RLIM_INFINITY else soft, 2**31 if left is None else left)
    if room >= _FEW_PROCESSES:
        return Answer("ok", text)
    advice = "Raise the limit of processes (`ulimit -u`; docker: --pids-limit): torch starts threads, which count too."
    return Answer("problem" if room < _TOO_FEW_PROCESSES else "note", text, advice)


def locked_memory() -> Answer:
    """Name the limit of locked memory; phalanx locks none."""
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    text = "unlimited" if soft == resource.RLIM_INFINITY else format_size(soft)
    return Answer("ok", f"{text}; phalanx locks none, InfiniBand needs much")


def address_space() -> Answer:
    """Say whether the address space is limited: a group and torch map more than they use."""
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    if soft == resource.RLIM_INFINITY:
        return Answer("ok", "unlimited")
    text = f"limited to {format_size(soft)} a process; torch and shared memory map more than they use"
    return Answer("note", text, MORE_ADDRESS_SPACE) if has_small_address_space() else Answer("ok", text)


def _count(number: int) -> str:
    return "unlimited" if number == resource.RLIM_INFINITY else str(number)


def _is_first_namespace() -> bool:
    with open("/proc/self/uid_map") as file:
        return file.read().split() == ["0", "0", "4294967295"]


TOPIC = Topic(
    "Limits",
    (
        Probe("open files", open_files, is_needed=False),
        Probe("processes", processes, is_needed=False),
        Probe("locked memory", locked_memory, is_needed=False),
        Probe("address space", address_space, is_needed=False),
    ),
)
