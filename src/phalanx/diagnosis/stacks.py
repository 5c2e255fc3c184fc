"""Where every thread of a rank stands, asked from outside: also when it is in native code or holds the GIL.

A rank that is ready to answer keeps a memory file. On a signal, faulthandler writes the stacks there without the help
of the interpreter; whoever asked reads the file through /proc. Processes that are not ready are never signalled.
"""

from __future__ import annotations

import contextlib
import faulthandler
import fcntl
import os
import re
import signal
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from phalanx.diagnosis.processes import catches, memory_files, state_of

# A real-time signal, which no library claims: programs may use SIGUSR1 for themselves.
STACK_SIGNAL = signal.SIGRTMIN + 7
MEMORY_NAME = "phalanx-stacks"
_KEPT_BYTES = 1 << 18
_POLL_S = 0.005
_SETTLED_S = 0.015
_THREAD = re.compile(r"(?P<current>Current thread|Thread) (?P<ident>0x[0-9a-f]+).*\(most recent call first\):")
_FRAME = re.compile(r'  File "(?P<file>[^"]*)", line (?P<line>\d+) in (?P<function>.*)')
_LIBRARY_FOLDER = str(Path(__file__).resolve().parents[1])
_LIBRARIES = ("/site-packages/", "/dist-packages/", "/lib/python3")


@dataclass(frozen=True)
class Frame:
    """One call on a stack."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{'/'.join(self.file.split('/')[-2:])}:{self.line} in {self.function}"


@dataclass(frozen=True)
class ThreadStack:
    """A thread and its calls.

    Attributes:
        ident: As threading.get_ident() counts.
        is_current: It was the one that answered: nearly always the main thread.
        frames: The innermost first.
    """

    ident: int
    is_current: bool
    frames: tuple[Frame, ...]

    def users_frames(self) -> tuple[Frame, ...]:
        """Return the calls of the user's own code, the innermost first; all when there is none."""
        return tuple(frame for frame in self.frames if is_users(frame.file)) or self.frames


def is_users(file: str) -> bool:
    """Tell whether a source file is neither phalanx's, nor Python's, nor of an installed library."""
    return not file.startswith((_LIBRARY_FOLDER, "<")) and not any(part in file for part in _LIBRARIES)


def is_launchers(file: str) -> bool:
    """Tell whether a source file only brings a rank to the user's code."""
    return file.startswith((f"{_LIBRARY_FOLDER}/launch/", f"{_LIBRARY_FOLDER}/jobs/", "<string>", "<frozen runpy>"))


def create_stack_memory() -> int:
    """Make the memory file that a process writes its stacks to."""
    descriptor = os.memfd_create(MEMORY_NAME)
    os.fchmod(descriptor, 0o600)
    # Appending, so that it can be emptied while the process still holds it.
    fcntl.fcntl(descriptor, fcntl.F_SETFL, fcntl.fcntl(descriptor, fcntl.F_GETFL) | os.O_APPEND)
    return descriptor


_ready: list[int] = []  # this process, once it answers; a child made by fork must get ready itself


def answer_with_stacks(descriptor: int | None = None) -> None:
    """Let this process write its stacks when it is asked, into the given memory or its own."""
    if descriptor is None:
        if _ready == [os.getpid()] or signal.getsignal(STACK_SIGNAL) is not signal.SIG_DFL:
            return
        descriptor = create_stack_memory()
    faulthandler.register(STACK_SIGNAL, file=descriptor, all_threads=True)
    _ready[:] = [os.getpid()]


def ask_for_stacks(pids: Iterable[int], *, timeout_s: float = 0.5) -> dict[int, str]:
    """Return what processes answer; those that are not ready, or stopped, or too slow, are left out."""
    asked: dict[int, tuple[str, int]] = {}
    for pid in set(pids):
        path = next((found.path for found in memory_files(pid, MEMORY_NAME)), None)
        if path is None or state_of(pid) in ("T", "t", "Z", "") or not catches(pid, STACK_SIGNAL):
            continue
        with contextlib.suppress(OSError):
            if os.stat(path).st_size > _KEPT_BYTES:
                os.truncate(path, 0)
            asked[pid] = (path, os.stat(path).st_size)
            os.kill(pid, STACK_SIGNAL)
    return _await_answers(asked, time.monotonic() + timeout_s)


def _await_answers(asked: Mapping[int, tuple[str, int]], deadline: float) -> dict[int, str]:
    answers: dict[int, str] = {}
    settled_at = deadline
    while time.monotonic() < min(deadline, settled_at):
        time.sleep(_POLL_S)
        before = dict(answers)
        for pid, (path, start) in asked.items():
            with contextlib.suppress(OSError):
                text = Path(path).read_bytes()[start:].decode(errors="replace")
                if "Current thread" in text:
                    answers[pid] = text
        if answers != before or len(answers) < len(asked):
            settled_at = time.monotonic() + _SETTLED_S if len(answers) == len(asked) else deadline
    return answers


def parse_stacks(text: str) -> list[ThreadStack]:
    """Read what faulthandler wrote; of several answers the last about each thread counts."""
    threads: dict[int, ThreadStack] = {}
    frames: list[Frame] = []
    head: re.Match[str] | None = None

    def take() -> None:
        if head is not None:
            ident = int(head["ident"], 16)
            threads[ident] = ThreadStack(ident, head["current"] != "Thread", tuple(frames))
        frames.clear()

    for line in text.splitlines():
        found = _THREAD.match(line)
        if found is not None:
            take()
            head = found
        elif (call := _FRAME.fullmatch(line)) is not None:
            frames.append(Frame(call["file"], int(call["line"]), call["function"]))
    take()
    return list(threads.values())


def stack_of(threads: Sequence[ThreadStack], ident: int) -> ThreadStack | None:
    """Return the stack of the thread with this number, else of the one that answered."""
    wanted = [thread for thread in threads if thread.ident == ident]
    return next(iter(wanted or [thread for thread in threads if thread.is_current]), None)
