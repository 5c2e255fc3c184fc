"""Find out what the Python threads of this process run that have not called an operation of a group.

Such a thread may still make the call that stuck ranks wait for. If its stack has a function of the program, nobody can
know when. If it runs only code of libraries, such as the thread of a progress bar, it will most likely never do so.
"""

from __future__ import annotations

import os
import sys
import sysconfig
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import FrameType
from typing import Literal

from phalanx.engine.facts import RankFacts
from phalanx.launch.threads import ThreadTeam

_LIBRARY_FOLDERS = tuple(
    f"{folder}{os.sep}"
    for folder in (
        sysconfig.get_path("stdlib"),
        sysconfig.get_path("platstdlib"),
        str(Path(__file__).resolve().parents[1]),
    )
)
_PACKAGES = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")


def what_other_threads_run(rows: Iterable[RankFacts]) -> Literal["none", "libraries", "program"]:
    """Return what other threads run than those that call the operations of these ranks, and than the calling thread.

    Args:
        rows: The ranks of this process, one row for each of their groups.
    """
    callers = {0}
    for row in rows:
        callers |= {row.caller, row.backward_caller}
        if row.is_thread:
            callers.add(row.thread)  # it calls the operations of its own rank only
    stacks = [*_stacks_of_others(callers)]
    if any(_runs_program(stack) for stack in stacks):
        return "program"
    return "libraries" if stacks else "none"


def _stacks_of_others(callers: set[int]) -> Iterator[FrameType]:
    """Yield the innermost frame of every other thread that matters."""
    known = {thread.ident: thread for thread in threading.enumerate()}
    unseen = callers - {0}
    strangers = []  # threads that Python has not started, such as those of torch's backward pass
    for ident, frame in sys._current_frames().items():
        thread = known.get(ident)
        if ident == threading.get_ident() or (thread is not None and thread.name.startswith("phalanx")):
            continue
        if thread is None:
            strangers.append(frame)
        elif (number := _number_of(thread)) in callers:
            unseen.discard(number)
        elif not _waits_for_ranks(frame):
            yield frame
    # Python does not know the kernel's numbers of these threads.
    if len(strangers) > len(unseen):
        yield from strangers


def _number_of(thread: threading.Thread) -> int | None:
    """Return what the kernel calls a thread. After a fork, Python has an old number for the main thread."""
    return os.getpid() if thread is threading.main_thread() else thread.native_id


def _waits_for_ranks(frame: FrameType | None) -> bool:
    """Tell whether a thread waits until the ranks end that are threads."""
    while frame is not None and frame.f_code is not ThreadTeam.run.__code__:
        frame = frame.f_back
    return frame is not None


def _runs_program(frame: FrameType | None) -> bool:
    while frame is not None:
        if not _is_of_library(frame.f_code.co_filename):
            return True
        frame = frame.f_back
    return False


def _is_of_library(file: str) -> bool:
    return file.startswith(("<frozen ", *_LIBRARY_FOLDERS)) or any(folder in file for folder in _PACKAGES)
