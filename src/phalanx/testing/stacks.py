"""Get the stacks of all threads of a rank from outside, even if the rank hangs in native code."""

from __future__ import annotations

import contextlib
import faulthandler
import linecache
import os
import time
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType

from phalanx.diagnosis import stacks
from phalanx.diagnosis.stacks import STACK_SIGNAL, Frame, is_users, parse_frame, parse_stacks
from phalanx.testing.output import OutputFiles

# Dumping all threads may crash a process that starts or ends threads meanwhile: only for ranks that will be ended.
_LAST_WORDS_SIGNAL = STACK_SIGNAL + 1
_LONGEST_S = 1.0
_SETTLED_S = 0.05
_OWN_FOLDER = str(Path(__file__).resolve().parent)
_HIDDEN = (
    _OWN_FOLDER,
    "/_pytest/",
    "/pluggy/",
    "/pytest/__main__",
    "<frozen runpy>",
    "/bin/pytest",
    "/xdist/",
    "/execnet/",
)


def answer_with_stacks(files: OutputFiles) -> None:
    """Make this process write its stacks when it gets the signal, and when it crashes."""
    faulthandler.enable(file=files.stacks)
    stacks.answer_with_stacks(files.stacks)
    faulthandler.register(_LAST_WORDS_SIGNAL, file=files.stacks, all_threads=True)


def ask_for_stacks(ranks: Mapping[int, tuple[int, OutputFiles]]) -> dict[int, str]:
    """Return the stacks that ranks write, given their process ids and files."""
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


def show_stacks(text: str) -> str:
    """Turn faulthandler's lines into tracebacks with source, the innermost call last, without the harness's frames."""
    shown: list[str] = []
    frames: list[str] = []

    def flush() -> None:
        shown.extend(reversed(frames))
        frames.clear()

    for line in text.splitlines():
        found = parse_frame(line)
        if found is None:
            flush()
            if line.strip() and not line.startswith(("Extension modules:", "@")):
                shown.append(line.replace("most recent call first", "innermost call last"))
        elif not _is_hidden(found.file):
            source = linecache.getline(found.file, found.line).strip()
            text = f'  File "{found.file}", line {found.line}, in {found.function}'
            frames.append(f"{text}\n    {source}" if source else text)
    flush()
    return "\n".join(shown)


def innermost_place(text: str) -> str:
    """Return file and line of the user's innermost call in the main thread; empty if unknown."""
    return _place([frame for thread in parse_stacks(text) if thread.is_current for frame in thread.frames])


def show_frame(frame: FrameType) -> tuple[str, str]:
    """Return the stack of a thread of this process, as show_stacks() does, and its innermost place."""
    calls = [call for call in traceback.extract_stack(frame) if not call.filename.endswith("/threading.py")]
    shown = traceback.format_list([call for call in calls if not _is_hidden(call.filename)])
    return "".join(shown), _place([Frame(call.filename, call.lineno or 0, call.name) for call in reversed(calls)])


def _place(frames: Sequence[Frame]) -> str:
    shown = [frame for frame in frames if not _is_hidden(frame.file)]
    own = [frame for frame in shown if is_users(frame.file)] or shown
    return str(own[0]).rpartition(" in ")[0] if own else ""


def _is_hidden(file: str) -> bool:
    return any(part in file for part in _HIDDEN)
