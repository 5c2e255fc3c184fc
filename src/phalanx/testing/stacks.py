"""Where every thread of a rank stands, asked from outside: also when the rank hangs in native code."""

from __future__ import annotations

import contextlib
import faulthandler
import linecache
import os
import re
import time
import traceback
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import FrameType

from phalanx.diagnosis import stacks
from phalanx.diagnosis.stacks import STACK_SIGNAL, is_users, parse_frame
from phalanx.testing.output import OutputFiles

# All threads at once, which may crash a process whose threads come and go: only for ranks that are ended anyway.
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
    """Let this process write its stacks when it gets the signal, and when it crashes."""
    faulthandler.enable(file=files.stacks)
    stacks.answer_with_stacks(files.stacks)
    faulthandler.register(_LAST_WORDS_SIGNAL, file=files.stacks, all_threads=True)


def ask_for_stacks(ranks: Mapping[int, tuple[int, OutputFiles]]) -> dict[int, str]:
    """Return the stacks of ranks, given their process ids and files."""
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
    return {rank: show_stacks(files.read_stacks().splitlines()) for rank, (_, files) in ranks.items()}


def show_stacks(lines: Iterable[str]) -> str:
    """Turn faulthandler's lines into tracebacks with source, the innermost call last, without the harness's frames."""
    shown: list[str] = []
    frames: list[str] = []

    def flush() -> None:
        shown.extend(reversed(frames))
        frames.clear()

    for line in lines:
        found = parse_frame(line)
        if found is None:
            flush()
            if line.strip() and not line.startswith(("Extension modules:", "@")):
                shown.append(line.replace("most recent call first", "innermost call last"))
        elif not any(part in found.file for part in _HIDDEN):
            source = linecache.getline(found.file, found.line).strip()
            text = f'  File "{found.file}", line {found.line}, in {found.function}'
            frames.append(f"{text}\n    {source}" if source else text)
    flush()
    return "\n".join(shown)


def show_frame(frame: FrameType) -> str:
    """Return the stack of a thread of this process, the innermost call last, without the harness's frames."""
    found = [each for each in traceback.extract_stack(frame) if not any(part in each.filename for part in _HIDDEN)]
    return "".join(traceback.format_list([each for each in found if not each.filename.endswith("/threading.py")]))


def innermost_place(text: str) -> str:
    """Return file and line of the innermost frame of the main thread that is the user's; empty when unknown."""
    main = text.rpartition("Current thread")[2] or text
    found = re.findall(r'File "(.*)", line (\d+), in', main)
    own = [each for each in found if is_users(each[0])] or found
    return "/".join(own[-1][0].split("/")[-2:]) + ":" + own[-1][1] if own else ""
