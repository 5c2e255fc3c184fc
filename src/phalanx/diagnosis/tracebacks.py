"""Tracebacks for people: the calls inside phalanx and torch are left out, so that the user's own calls stand out."""

from __future__ import annotations

import contextlib
import linecache
import re
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

from phalanx.diagnosis.retold_errors import chain_of, seen_through
from phalanx.errors import InternalError, PhalanxError

_OWN_FOLDER = f"{Path(__file__).resolve().parents[1]}/"
_CALL = re.compile(r'(?P<indent> +)File "(?P<file>.+)", line (?P<line>[0-9]{1,9})(, in .*)?')
_HOW_TO_SEE = "PHALANX_FULL_TRACE=1 shows them"


def format_error(error: BaseException, *, is_full: bool) -> str:
    """Write an exception as Python does.

    Unless `is_full`, one line stands for the calls inside phalanx and torch, and errors of phalanx that torch retells
    are shown themselves.
    """
    if is_full:
        return "".join(traceback.format_exception(error))
    with seen_through(error) as seen:
        described = traceback.TracebackException(type(seen), seen, seen.__traceback__, compact=True)
    for each in _with_causes(described):
        each.stack = _fold(each.stack)
    return "".join(described.format())


def with_sources(text: str) -> str:
    """Add the lines of source that the writer of a traceback did not have, such as those of a notebook's cells."""
    lines = text.split("\n")
    complete = []
    for line, below in zip(lines, [*lines[1:], ""], strict=True):
        complete.append(line)
        call = _CALL.fullmatch(line)
        if call is not None and not below.startswith(f"{call['indent']}  "):
            source = linecache.getline(call["file"], int(call["line"])).strip()
            complete += [f"{call['indent']}  {source}"] if source else []
    return "\n".join(complete)


def text_of(error: BaseException) -> str:
    """Return the text of an exception; a remark if there is none, because its own __str__ raises."""
    try:
        return str(error)
    except Exception:
        return "(its text can't be shown)"


def identify(error: BaseException) -> str:
    """Return a text that is equal for exceptions of the same kind with equal tracebacks, whatever their messages."""
    frames = [f"{frame.filename}:{frame.lineno}" for frame in traceback.extract_tb(error.__traceback__)]
    return "|".join([type(error).__name__, *frames])


@contextlib.contextmanager
def without_internal_frames(error: BaseException) -> Iterator[None]:
    """Inside the block, the tracebacks of an exception and of its causes have only the user's own calls.

    A traceback without any such call stays as it is.
    """
    traces = [(each, each.__traceback__) for each in chain_of(error)]
    try:
        for each, trace in traces:
            each.__traceback__ = _keep_users(trace) or trace
        yield
    finally:
        for each, trace in traces:
            each.__traceback__ = trace


def is_from_inside(error: BaseException) -> bool:
    """Tell whether phalanx raised an error for the user, and no call of the user's own is in its traceback."""
    is_for_user = isinstance(error, PhalanxError) and not isinstance(error, InternalError)
    return is_for_user and _keep_users(error.__traceback__) is None


def users_part(trace: TracebackType | None) -> TracebackType | None:
    """Return a traceback from its first call outside of phalanx and torch on."""
    while trace is not None and is_internal(trace.tb_frame.f_code.co_filename):
        trace = trace.tb_next
    return trace


def is_internal(file: str) -> bool:
    """Tell whether a source file belongs to phalanx or to torch."""
    return file.startswith(tuple(_folders().values()))


def _folders() -> dict[str, str]:
    """Return the folders of phalanx and of torch, if torch is imported."""
    file = getattr(sys.modules.get("torch"), "__file__", None)
    return {"phalanx": _OWN_FOLDER, **({"torch": f"{Path(file).parent}/"} if file else {})}


class _Folded(traceback.FrameSummary):
    """Calls of a traceback for which one line stands."""

    def __init__(self, frames: list[traceback.FrameSummary]) -> None:
        super().__init__("", len(frames), "", lookup_line=False, line="")
        folders = _folders()
        libraries = [name for name in folders if any(frame.filename.startswith(folders[name]) for frame in frames)]
        calls = "1 call" if len(frames) == 1 else f"{len(frames)} calls"
        self.text = f"  ... {calls} inside {' and '.join(libraries)} ({_HOW_TO_SEE})\n"


class _FoldedStack(traceback.StackSummary):
    """A stack in which one line may stand for several calls."""

    def format_frame_summary(self, frame_summary: traceback.FrameSummary, **options: Any) -> str:
        """Write a call, or the line that stands for some."""
        if isinstance(frame_summary, _Folded):
            return frame_summary.text
        return super().format_frame_summary(frame_summary, **options)


def _fold(stack: traceback.StackSummary) -> traceback.StackSummary:
    if all(is_internal(frame.filename) for frame in stack):
        return stack
    folded = _FoldedStack()
    inside: list[traceback.FrameSummary] = []
    for frame in stack:
        if is_internal(frame.filename):
            inside.append(frame)
            continue
        if inside and folded:  # the first calls only start the user's code
            folded.append(_Folded(inside))
        inside = []
        folded.append(frame)
    if inside:
        folded.append(_Folded(inside))
    return folded


def _keep_users(trace: TracebackType | None) -> TracebackType | None:
    frames = []
    while trace is not None:
        if not is_internal(trace.tb_frame.f_code.co_filename):
            frames.append(trace)
        trace = trace.tb_next
    kept: TracebackType | None = None
    for each in reversed(frames):
        kept = TracebackType(kept, each.tb_frame, each.tb_lasti, each.tb_lineno)
    return kept


def _with_causes(described: traceback.TracebackException) -> Iterator[traceback.TracebackException]:
    todo = [described]
    while todo:
        each = todo.pop()
        yield each
        todo += [other for other in (each.__cause__, each.__context__, *(each.exceptions or ())) if other is not None]
