"""Get the stacks of all threads of a rank from outside, even if the rank hangs in native code."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import time
import traceback
from collections.abc import Collection, Mapping
from types import FrameType

from phalanx.diagnosis import asking, stacks
from phalanx.diagnosis.processes import descendants_of
from phalanx.diagnosis.stacks import STACK_SIGNAL, Frame
from phalanx.testing.output import OutputFiles
from phalanx.testing.shown_stacks import ShownStacks, show, show_calls

# Dumping all threads may crash a process that starts or ends threads meanwhile: only for ranks that will be ended.
_LAST_WORDS_SIGNAL = STACK_SIGNAL + 1
_LONGEST_S = 1.0
_SETTLED_S = 0.05
_MOST_CHILDREN = 64  # of each rank


def answer_with_stacks(files: OutputFiles) -> None:
    """Make this process write its stacks when it gets the signal, and when it crashes; its children answer too."""
    faulthandler.enable(file=files.stacks)
    stacks.answer_with_stacks(files.stacks)
    stacks.answer_in_children_too()
    faulthandler.register(_LAST_WORDS_SIGNAL, file=files.stacks, all_threads=True)


def look_at_ranks(ranks: Mapping[int, tuple[int, OutputFiles]]) -> dict[int, ShownStacks]:
    """Return the stacks of ranks, given their process ids and files, and of the processes that they have started."""
    children = _ask_children({pid for pid, _ in ranks.values()})  # first, because they may end with their ranks
    answers = _ask_for_last_words(ranks)
    return {rank: show(answers[rank], children[pid].items()) for rank, (pid, _) in ranks.items()}


def show_frame(frame: FrameType) -> ShownStacks:
    """Return the stack of a thread of this process."""
    calls = [call for call in traceback.extract_stack(frame) if not call.filename.endswith("/threading.py")]
    return show_calls([Frame(call.filename, call.lineno or 0, call.name) for call in reversed(calls)])


def _ask_children(pids: Collection[int]) -> dict[int, dict[int, str]]:
    """Return the answers of the processes that ranks have started, by process id of the rank and of the child."""
    children = {pid: descendants_of(pid, _MOST_CHILDREN) for pid in pids if pid}
    answers = asking.ask_for_stacks([child for some in children.values() for child in some], timeout_s=_LONGEST_S)
    return {pid: {child: answers.get(child, "") for child in children.get(pid, ())} for pid in pids}


def _ask_for_last_words(ranks: Mapping[int, tuple[int, OutputFiles]]) -> dict[int, str]:
    for pid, _ in ranks.values():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, _LAST_WORDS_SIGNAL)
    deadline = time.monotonic() + _LONGEST_S
    sizes: dict[int, int] = {}
    while time.monotonic() < deadline:
        time.sleep(_SETTLED_S)
        now = {rank: os.fstat(files.stacks).st_size for rank, (_, files) in ranks.items()}
        if all(now.values()) and now == sizes:
            break
        sizes = now
    return {rank: files.read_stacks() for rank, (_, files) in ranks.items()}
