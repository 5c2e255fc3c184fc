"""Find the threads and processes that a test did not end: name them, so that the user can fix it, and end them."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from pathlib import Path

from phalanx.launch.orphans import own_children

_LOOKS, _BETWEEN_LOOKS_S = 20, 0.005
# Threads of libraries that live as long as their process, by the beginning of their names.
_LIBRARY_THREADS = (
    "phalanx-",
    "QueueFeederThread",
    "ThreadPoolExecutor",  # Python itself joins their threads at the end of a process
    "pt_",
    "tqdm",
    "pydevd.",
    "asyncio_",
    "Dummy-",
)


def note_threads() -> frozenset[threading.Thread]:
    """Return the threads that run now."""
    return frozenset(threading.enumerate())


def find_threads(before: frozenset[threading.Thread]) -> list[str]:
    """Name the threads that were started since and still run."""
    return [
        f"thread {thread.name!r}"
        for thread in threading.enumerate()
        if thread not in before and not thread.name.startswith(_LIBRARY_THREADS)
    ]


def end_child_processes() -> list[str]:
    """End this process's children and name them, except those that multiprocessing ends itself."""
    if not own_children():
        return []
    processes = sys.modules.get("multiprocessing.process")
    if processes is not None:
        for child in processes.active_children():
            if child.daemon:  # Python itself ends these with the process
                child.terminate()
                child.join(1)
    named = []
    for pid in own_children():
        command = _command_line(pid)
        if "multiprocessing.resource_tracker" in command or _is_zombie(pid):
            continue
        named.append(f"process {pid} ({command})")
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, 0)
    return named


def _is_zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] == b"Z"
    except OSError:
        return True


def _command_line(pid: int) -> str:
    text = ""
    try:
        for _ in range(_LOOKS):
            text = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
            if text:
                break
            time.sleep(_BETWEEN_LOOKS_S)  # a program that is being loaded has no command line yet
        text = text or Path(f"/proc/{pid}/comm").read_bytes().decode(errors="replace").strip()
    except OSError:
        return "already gone"
    return text if len(text) <= 100 else text[:97] + "..."
