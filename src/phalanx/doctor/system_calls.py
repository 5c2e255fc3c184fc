"""Probes of the system calls that ranks, torch and MPI need. Each call is really made."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import platform
import secrets
import signal
import socket
import time
from pathlib import Path

from phalanx.doctor.finding import Answer, Probe, Topic
from phalanx.doctor.neighbours import ask_sibling, errno_of, neighbour, system_call
from phalanx.launch.waiting import is_readable

_FUTEX = {"x86_64": 202, "aarch64": 98}
_FUTEX_WAIT, _FUTEX_WAKE = 0, 1
_PIDFD_GETFD = 438
_PATIENCE_S = 2
_CONTAINER_ADVICE = "Let the container's seccomp profile allow {} (docker: --security-opt seccomp=...)."


class _TimeSpec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class _Piece(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("size", ctypes.c_size_t))


def futex() -> Answer:
    """Let a process sleep on a word of shared memory, and wake it."""
    number = _FUTEX[platform.machine()]
    with mmap.mmap(-1, mmap.PAGESIZE) as page:
        word = ctypes.c_uint32.from_buffer(page)
        address = ctypes.c_void_p(ctypes.addressof(word))
        del word  # or the page can't be unmapped
        until = ctypes.byref(_TimeSpec(_PATIENCE_S, 0))
        slept = time.monotonic()

        def wake() -> None:
            while system_call(number, address, _FUTEX_WAKE, 1, None, None, 0) == 0:  # it does not sleep yet
                if time.monotonic() > slept + _PATIENCE_S:
                    raise TimeoutError("nobody slept")
                time.sleep(0.0005)

        pid = os.fork()
        if pid == 0:
            code = errno_of(lambda: system_call(number, address, _FUTEX_WAIT, 0, until, None, 0))
            os._exit(code)
        try:
            wake()
        finally:
            code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if code:
        raise OSError(code, os.strerror(code))
    return Answer("ok", "a sleeping process was woken by another")


def memory_file() -> Answer:
    """Make a memory file that nobody can shrink, as every group does."""
    descriptor = os.memfd_create("phalanx-doctor", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(descriptor, mmap.PAGESIZE)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
        if errno_of(lambda: os.ftruncate(descriptor, 0)) != errno.EPERM:
            return Answer("problem", "memory files can't be sealed", "Use a Linux kernel, 5.3 or newer.")
    finally:
        os.close(descriptor)
    return Answer("ok", "made and sealed; groups live in such files")


def pidfd_open() -> Answer:
    """Notice the end of a process by its descriptor, as ranks watch their peers."""
    with neighbour() as pid:
        descriptor = os.pidfd_open(pid)
        try:
            os.kill(pid, signal.SIGKILL)
            if not is_readable(descriptor, _PATIENCE_S):
                return Answer("problem", "opens, but does not tell when the process ends")
        finally:
            os.close(descriptor)
    return Answer("ok", "tells when a process ends")


def pidfd_getfd() -> Answer:
    """Take a descriptor out of a sibling, as torch does to share CUDA memory of expandable segments."""
    use = "torch shares CUDA memory of expandable segments with it; phalanx does without it"
    held = os.memfd_create("phalanx-doctor")
    try:
        with neighbour() as holder:
            code = ask_sibling(lambda: errno_of(lambda: system_call(_PIDFD_GETFD, os.pidfd_open(holder), held, 0)))
    finally:
        os.close(held)
    if code == 0:
        return Answer("ok", "works between ranks")
    return _refused("pidfd_getfd", code, use)


def process_vm_readv() -> Answer:
    """Read a sibling's memory, as MPI does for large messages."""
    use = "MPI copies large messages with it, or else twice; phalanx does without it"
    libc = ctypes.CDLL(None, use_errno=True)
    source = ctypes.create_string_buffer(b"phalanx doctor")
    target = ctypes.create_string_buffer(len(source))
    there = _Piece(ctypes.addressof(source), len(source))
    here = _Piece(ctypes.addressof(target), len(target))

    def read(pid: int) -> int:
        count = libc.process_vm_readv(pid, ctypes.byref(here), 1, ctypes.byref(there), 1, 0)
        return ctypes.get_errno() if count < 0 else 0 if target.raw == source.raw else 255

    with neighbour() as owner:
        code = ask_sibling(lambda: read(owner))
    return Answer("ok", "works between ranks; MPI uses it") if code == 0 else _refused("process_vm_readv", code, use)


def abstract_sockets() -> Answer:
    """Meet at a name without a file and hand over a descriptor, as ranks of a new group do."""
    name = f"\0phalanx-doctor-{os.getpid()}-{secrets.token_hex(4)}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
        server.bind(name)
        server.listen(1)
        server.settimeout(_PATIENCE_S)
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as guest:
            guest.connect(name)
            host, _ = server.accept()
            with host:
                socket.send_fds(host, [b"d"], [server.fileno()])
                _, descriptors, _, _ = socket.recv_fds(guest, 1, 1)
    for descriptor in descriptors:
        os.close(descriptor)
    if not descriptors:
        return Answer("problem", "abstract names work, but no descriptor came through")
    return Answer("ok", "abstract names work, descriptors come through")


def yama_scope(file: Path = Path("/proc/sys/kernel/yama/ptrace_scope")) -> int:
    """Return Yama's ptrace_scope, or 0 if this kernel does not have it."""
    return int(file.read_text()) if file.exists() else 0


def _refused(name: str, code: int, use: str) -> Answer:
    name_of_error = errno.errorcode.get(code, code)
    if code == errno.ENOSYS:
        return Answer("note", f"this kernel does not have it, or a container hides it ({name_of_error}); {use}")
    advice = _CONTAINER_ADVICE.format(name) + " Only if you need it."
    if yama_scope():
        advice = f"Set kernel.yama.ptrace_scope to 0 with sysctl if you need {name}."
    return Answer("note", f"refused between ranks ({name_of_error}); {use}", advice)


TOPIC = Topic(
    "System calls",
    (
        Probe("futex", futex, advice_when_lost=_CONTAINER_ADVICE.format("futex")),
        Probe("memfd_create", memory_file,
              advice_when_lost=_CONTAINER_ADVICE.format("memfd_create") + " Or set vm.memfd_noexec below 2."),
        Probe("Unix sockets", abstract_sockets, advice_when_lost="Allow AF_UNIX sockets with abstract names."),
        Probe("pidfd_open", pidfd_open, advice_when_lost=_CONTAINER_ADVICE.format("pidfd_open")),
        Probe("pidfd_getfd", pidfd_getfd, is_needed=False),
        Probe("process_vm_readv", process_vm_readv, is_needed=False),
    ),
)  # fmt: skip
