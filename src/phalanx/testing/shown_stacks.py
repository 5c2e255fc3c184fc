"""How a report shows stacks: the line of the program first, then the user's calls, with one line for all others."""

from __future__ import annotations

import itertools
import linecache
import sysconfig
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from phalanx.diagnosis.stacks import Frame, is_users, parse_frame, parse_stacks, stack_of

_OWN_FOLDER = f"{Path(__file__).resolve().parents[1]}/"
_STARTER = f"{_OWN_FOLDER}testing/rank_test.py"  # calls the test; what is above it are pytest's own calls
_PYTHON_FOLDER = f"{sysconfig.get_path('stdlib')}/"
_PYTEST = ("/_pytest/", "/pluggy/", "/pytest/__main__", "/bin/pytest", "/xdist/", "/execnet/")
_NO_TITLES = ("Extension modules:", "@", "  ...")  # faulthandler shows 100 calls and these three dots
_ANSWER = "Stack (innermost call last):"  # faulthandler's words for the stack of one thread
_HOW_TO_SEE = "PHALANX_FULL_TRACE=1 shows them"

# Turns calls, the innermost first, into lines, the innermost call last.
_Write = Callable[[Sequence[Frame]], list[str]]


@dataclass(frozen=True)
class ShownStacks:
    """The stacks of a rank and of the processes that it has started, as text.

    Attributes:
        place: File and line of the program that the rank is at; empty if unknown.
        short: The stacks with one line for the calls inside phalanx, torch, pytest and Python.
        full: The stacks with all calls, but for those that start the test.
    """

    place: str = ""
    short: str = ""
    full: str = ""


@dataclass(frozen=True)
class _Section:
    """A line that is not a call, such as the name of a thread, and the calls below it, the innermost first."""

    title: str
    frames: list[Frame]

    @property
    def is_quiet(self) -> bool:
        """Whether it is a thread, but not the main one, that runs nothing of the user."""
        return self.title.startswith("Thread ") and all(_library_of(frame.file) for frame in self.frames)


def show(text: str, children: Iterable[tuple[int, str]] = ()) -> ShownStacks:
    """Show what a rank wrote when it was asked, and what its children wrote, each with its process id."""
    frames = _of_test([frame for thread in parse_stacks(text) if thread.is_current for frame in thread.frames])
    sections = _without_answers(_sections(text))
    seen = [(pid, calls) for pid, answer in children if (calls := _own_calls(pid, answer))]
    short = [*_headline(frames), *_shorten(sections), *_show_children(seen, _fold)]
    full = [*_show_sections(sections, _write_in_full), *_show_children(seen, _write_in_full)]
    return ShownStacks(_place(frames), "\n".join(short), "\n".join(full))


def show_calls(frames: Sequence[Frame]) -> ShownStacks:
    """Show the calls of one thread, the innermost first."""
    frames = _of_test(frames)
    return ShownStacks(
        _place(frames), "\n".join([*_headline(frames), *_fold(frames)]), "\n".join(_write_in_full(frames))
    )


def _innermost(frames: Sequence[Frame]) -> Frame | None:
    """Return the innermost call of the user; if there is none, that of a library."""
    others = [frame for frame in frames if _library_of(frame.file) not in ("phalanx", "pytest")]
    return next(iter([frame for frame in others if is_users(frame.file)] or others), None)


def _place(frames: Sequence[Frame]) -> str:
    return str(_innermost(frames) or "").rpartition(" in ")[0]


def _headline(frames: Sequence[Frame]) -> list[str]:
    innermost = _innermost(frames)
    return [f"at {innermost}:"] if innermost is not None else []


def _own_calls(pid: int, answer: str) -> tuple[Frame, ...]:
    """Return the calls of a child, without those that its parent had made; none if it waits for work."""
    stack = stack_of(parse_stacks(answer), pid)
    return () if stack is None or stack.is_idle() else stack.own_frames()


def _show_children(children: Iterable[tuple[int, Sequence[Frame]]], write: _Write) -> list[str]:
    lines = []
    for pid, frames in children:
        lines += [f"its child pid {pid}, {''.join(_headline(frames)) or 'outside of the program:'}", *write(frames)]
    return lines


def _sections(text: str) -> list[_Section]:
    sections: list[_Section] = []
    for line in text.splitlines():
        frame = parse_frame(line)
        if frame is not None:
            if not sections:
                sections.append(_Section("", []))
            sections[-1].frames.append(frame)
        elif line.strip() and not line.startswith(_NO_TITLES):
            sections.append(_Section(line.replace("most recent call first", "innermost call last"), []))
    return [_Section(section.title, _of_test(section.frames)) for section in sections]


def _without_answers(sections: list[_Section]) -> list[_Section]:
    """Leave out what the rank wrote when other processes asked it, unless there is nothing else."""
    return [section for section in sections if section.title != _ANSWER] or sections[-1:]


def _of_test(frames: Sequence[Frame]) -> list[Frame]:
    """Return the calls of a test, without those that start it, which may be another program's: pytest can be called."""
    return list(itertools.takewhile(lambda frame: frame.file != _STARTER, frames)) or list(frames)


def _show_sections(sections: Iterable[_Section], write: _Write) -> list[str]:
    return [line for each in sections for line in (each.title, *write(each.frames)) if line]


def _shorten(sections: Sequence[_Section]) -> list[str]:
    shown = [section for section in sections if not section.is_quiet]
    num_quiet = len(sections) - len(shown)
    if len([section for section in shown if section.frames]) == 1:  # then its thread needs no name
        shown = [_Section("", section.frames) if section.frames else section for section in shown]
    lines = _show_sections(shown, _fold)
    if num_quiet:
        threads = "1 more thread" if num_quiet == 1 else f"{num_quiet} more threads"
        calls = [frame for section in sections if section.is_quiet for frame in section.frames]
        lines.append(f"  ... {threads} inside {_libraries_of(calls)} ({_HOW_TO_SEE})")
    return lines


def _write(frames: Sequence[Frame]) -> list[str]:
    lines = []
    for frame in reversed(frames):
        lines.append(f'  File "{frame.file}", line {frame.line}, in {frame.function}')
        source = linecache.getline(frame.file, frame.line).strip()
        lines += [f"    {source}"] if source else []
    return lines


def _write_in_full(frames: Sequence[Frame]) -> list[str]:
    """Write all calls but those of pytest and phalanx that start the test."""
    below = itertools.dropwhile(_starts_the_test, reversed(frames))
    return _write(list(below)[::-1] or frames)


def _starts_the_test(frame: Frame) -> bool:
    return _library_of(frame.file) in ("phalanx", "pytest") or frame.file.startswith("<")


def _fold(frames: Sequence[Frame]) -> list[str]:
    """Write the calls of the user, and one line for those between them and below them; leave out those above them.

    If there are no calls of the user, all are written.
    """
    if all(_library_of(frame.file) for frame in frames):
        return _write(frames)
    lines: list[str] = []
    for is_inside, some in itertools.groupby(reversed(frames), lambda frame: bool(_library_of(frame.file))):
        calls = list(some)
        if not is_inside:
            lines += _write(calls[::-1])
        elif lines:
            count = "1 call" if len(calls) == 1 else f"{len(calls)} calls"
            lines.append(f"  ... {count} inside {_libraries_of(calls)} ({_HOW_TO_SEE})")
    return lines


def _libraries_of(frames: Iterable[Frame]) -> str:
    names = list(dict.fromkeys(_library_of(frame.file) for frame in frames))
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def _library_of(file: str) -> str:
    """Return the name of the library whose calls a report folds; empty for the user's code and other libraries."""
    if file.startswith(_OWN_FOLDER):
        return "phalanx"
    if "/site-packages/torch/" in file or "/dist-packages/torch/" in file:
        return "torch"
    if any(part in file for part in _PYTEST):
        return "pytest"
    is_python = file.startswith((_PYTHON_FOLDER, "<frozen ", "<string>")) and "-packages/" not in file
    return "Python" if is_python else ""
