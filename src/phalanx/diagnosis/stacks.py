"""The stacks of a rank: how a process gets ready to write them when it is asked, and how to read what it wrote.

A process that is ready has a memory file for its answers, and its pid is in the name of one of its memory files. (A
forked child has these files too, but another pid.) On a signal, faulthandler writes the stack of the thread that got
the signal. It does not need the interpreter, so it also works if the thread is in native code or holds the GIL. It
writes only the stack of that thread, because reading the stacks of running threads could crash the process. See
asking.py.
"""

from __future__ import annotations

import contextlib
import faulthandler
import fcntl
import functools
import os
import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

# A real-time signal, which no library uses; programs may use SIGUSR1 themselves.
STACK_SIGNAL = signal.SIGRTMIN + 7
MEMORY_NAME = "phalanx-stacks"
_THREAD = re.compile(r"(?P<current>Current thread|Thread) (?P<ident>0x[0-9a-f]{1,16}).*\(most recent call first\):")
_FRAME = re.compile(r'  File "(?P<file>.*)", line (?P<line>[0-9]{1,9}) in (?P<function>.*)')
_ESCAPED = re.compile(r"\\x([0-9a-f]{2})|\\u([0-9a-f]{4})|\\U([0-9a-f]{8})")
_LIBRARY_FOLDER = str(Path(__file__).resolve().parents[1])
_LAUNCHERS = (*(f"{_LIBRARY_FOLDER}/{name}/" for name in ("launch", "jobs", "testing")), "<string>", "<frozen runpy>")
_ENDINGS = (
    (f"{_LIBRARY_FOLDER}/jobs/script.py", "_finish"),
    (f"{_LIBRARY_FOLDER}/launch/rank_process.py", "_report_to_caller"),
)
_THREADING = "/threading.py"
# torch.compile's files: "c" and a hash, in a folder that is called as the first two letters of the hash.
_COMPILED = re.compile(r"/([a-z2-7]{2})/c\1[a-z2-7]{40,}\.py$")
_PACKAGE = re.compile(r"/(?:site|dist)-packages/([^/.]+)")
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
        ident: The kernel's number of the thread.
        is_current: Whether it is the main thread.
        frames: Its calls, the innermost first.
    """

    ident: int
    is_current: bool
    frames: tuple[Frame, ...]

    def users_frames(self) -> tuple[Frame, ...]:
        """Return the calls of the user's program, the innermost first; all calls if there are none."""
        return self.program_frames() or self.own_frames()

    def program_frames(self) -> tuple[Frame, ...]:
        """Return the calls of the user's program, the innermost first; none if there are none."""
        own = self.own_frames()
        return tuple(own[number] for number in find_program([frame.file for frame in own]))

    def is_at_exit(self) -> bool:
        """Tell whether the program has ended, and its process still joins threads or runs handlers of atexit."""
        own = self.own_frames()
        begun = next((number for number, frame in enumerate(own) if _ends_process(frame)), 0)
        inner = own[begun - 1] if begun else None
        is_ended_by_us = inner is not None and not inner.file.startswith(_LIBRARY_FOLDER)
        return is_ended_by_us or bool(own and own[-1].function == "_shutdown" and own[-1].file.endswith(_THREADING))

    def own_frames(self) -> tuple[Frame, ...]:
        """Return the calls since the start of the process: one that multiprocessing has forked has its parent's too."""
        start = next((number for number, frame in enumerate(self.frames) if _begins_process(frame)), None)
        return self.frames if start is None else self.frames[: start + 1]

    def is_idle(self) -> bool:
        """Tell whether it is a worker of a DataLoader or a pool, and waits for work."""
        own = self.own_frames()
        return (
            any(map(_begins_process, own))
            and any(frame.function == "get" and frame.file.endswith("/multiprocessing/queues.py") for frame in own)
            and not any(is_users(frame.file) for frame in own)
        )


def _ends_process(frame: Frame) -> bool:
    """Tell whether this call of a launcher goes on when the program has ended."""
    return (frame.file, frame.function) in _ENDINGS


def _begins_process(frame: Frame) -> bool:
    return frame.function == "_bootstrap" and frame.file.endswith("/multiprocessing/process.py")


def is_users(file: str) -> bool:
    """Tell whether a source file belongs neither to phalanx nor to Python nor to an installed library.

    A file that torch.compile has written is not the user's either.
    """
    is_library = file.startswith((_LIBRARY_FOLDER, "<")) or any(part in file for part in _LIBRARIES)
    return not is_library and _COMPILED.search(file) is None


def find_program(files: Sequence[str]) -> list[int]:
    """Return which calls are the program's own, given the source files of all calls, the innermost first.

    Those are the calls of the user's files. If the user's files only start a module of an installed package, as with
    runpy, those are the calls of packages, without torch.
    """
    num_inside = next((number for number, file in enumerate(files) if _is_runpy(file)), len(files))
    for end in (num_inside, len(files)):
        for is_wanted in (is_users, _is_package):
            if found := [number for number, file in enumerate(files[:end]) if is_wanted(file)]:
                return found
    return []


def _is_runpy(file: str) -> bool:
    return file == "<frozen runpy>" or file.endswith("/runpy.py")


def _is_package(file: str) -> bool:
    found = _PACKAGE.search(file)
    return found is not None and found[1] != "torch" and not is_launchers(file) and not file.startswith(_LIBRARY_FOLDER)


def is_launchers(file: str) -> bool:
    """Tell whether a source file only starts the user's code on a rank."""
    return file.startswith(_LAUNCHERS) or any(part in file for part in ("/_pytest/", "/pluggy/", "/pytest/__main__"))


def create_stack_memory(name: str = MEMORY_NAME) -> int:
    """Make the memory file that a process writes its stacks to."""
    descriptor = os.memfd_create(name)
    os.fchmod(descriptor, 0o600)
    # Open it for appending, so that it can be emptied while the process still has it open.
    fcntl.fcntl(descriptor, fcntl.F_SETFL, fcntl.fcntl(descriptor, fcntl.F_GETFL) | os.O_APPEND)
    return descriptor


# By process, because a forked child must get ready itself: a mark, or the descriptor that it was given.
_ready: dict[int, object] = {}


def answer_with_stacks(descriptor: int | None = None) -> None:
    """Let this process write its stacks when it is asked, into the given memory or its own."""
    pid = os.getpid()
    if descriptor is None:
        mark = object()
        # Ranks that are threads call this at the same time; this one step lets only one of them continue.
        if signal.getsignal(STACK_SIGNAL) is not signal.SIG_DFL or _ready.setdefault(pid, mark) is not mark:
            return
        descriptor = create_stack_memory(f"{MEMORY_NAME}:{pid}")
    elif _ready.get(pid) != (number := os.fstat(descriptor).st_ino):
        os.memfd_create(f"{MEMORY_NAME}:{pid}:{number}")  # stays open while this process runs
        _ready[pid] = number
    faulthandler.register(STACK_SIGNAL, file=descriptor, all_threads=False)


def answer_in_children_too() -> None:
    """Let this process write its stacks when it is asked, and every process that it forks from now on."""
    _answer_if_possible()
    _answer_after_fork()


@functools.cache  # a process that is forked keeps what was registered
def _answer_after_fork() -> None:
    os.register_at_fork(after_in_child=_answer_if_possible)


def _answer_if_possible() -> None:
    with contextlib.suppress(OSError):  # no descriptor is left: the program's own calls will say so
        answer_with_stacks()


def parse_frame(line: str) -> Frame | None:
    """Read a line of faulthandler that describes a call; None for any other line."""
    found = _FRAME.fullmatch(line)
    # faulthandler writes ASCII and escapes all other characters.
    return found and Frame(
        _ESCAPED.sub(_unescape, found["file"]), int(found["line"]), _ESCAPED.sub(_unescape, found["function"])
    )


def _unescape(escaped: re.Match[str]) -> str:
    code = int(next(filter(None, escaped.groups())), 16)
    is_text = code > 0x7F and not 0xD800 <= code <= 0xDFFF and code <= 0x10FFFF
    return chr(code) if is_text else escaped[0]


def parse_stacks(text: str) -> list[ThreadStack]:
    """Read answers; if there are several about one thread, the last one counts."""
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
        elif (frame := parse_frame(line)) is not None:
            frames.append(frame)
    take()
    return list(threads.values())


def stack_of(threads: Sequence[ThreadStack], ident: int) -> ThreadStack | None:
    """Return the stack of the thread with this number, or else of the main thread."""
    wanted = [thread for thread in threads if thread.ident == ident]
    return next(iter(wanted or [thread for thread in threads if thread.is_current]), None)
