"""Functions that write ranks, shapes, source lines and exit statuses in the same way in every message."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable

from phalanx.engine.facts import EntryFacts, far_rank

# Characters that control a terminal, are invisible, or change the order in which text is shown.
_INVISIBLE = re.compile(
    "[\\x00-\\x1f\\x7f-\\x9f\\u061c\\u200b-\\u200f\\u2028-\\u202e\\u2060-\\u206f\\ufeff\\ufff9-\\ufffb\\ud800-\\udfff]"
)

ELSEWHERE = "elsewhere: "  # before the text of a fault that another host is to blame for


def visible(text: str) -> str:
    """Write control characters as escapes, because names that others have chosen must not control the terminal."""
    return _INVISIBLE.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def visible_lines(text: str) -> str:
    """Write control characters as escapes, and keep line ends."""
    return "\n".join(map(visible, text.split("\n")))


def rank_list(ranks: Iterable[int]) -> str:
    """Write ranks as "rank 3" or "ranks 0-2, 5"."""
    ordered = sorted(set(ranks))
    runs: list[list[int]] = []
    for rank in ordered:
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    text = ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
    return f"rank {text}" if len(ordered) == 1 else f"ranks {text}"


def shape(value: Iterable[int]) -> str:
    """Write a shape as torch does, without the class name."""
    dims = tuple(value)
    return f"({dims[0]},)" if len(dims) == 1 else "(" + ", ".join(map(str, dims)) + ")"


def death(status: int) -> str:
    """Say how a process ended; `status` is an exit code, 256 + signal, or negative if unknown."""
    if status < 0:
        return "died"
    if status < 256:
        return f"ended with exit code {status}"
    try:
        return f"was killed by {signal.Signals(status - 256).name} (signal {status - 256})"
    except ValueError:
        return f"was killed by signal {status - 256}"


_CRASHES = (signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT, signal.SIGILL, signal.SIGFPE)


def advice_about_death(status: int) -> str:
    """Say what to do about a Python process that ended without an exception; `status` is as for death()."""
    if 0 <= status < 256:
        return "look for os._exit(), or for C code that ends the process; phalanx saw no exception"
    if status - 256 == signal.SIGKILL:
        return "find out who killed it (phalanx did not); the kernel does so if memory runs out, and dmesg says so"
    if status - 256 in _CRASHES:
        return "set PYTHONFAULTHANDLER=1 to see the line of the program at which native code crashed"
    return "find out who sent it this signal; phalanx did not" if status >= 256 else ""


def place(location: str) -> str:
    """Shorten a source location to its last folder and file."""
    return "/".join(location.split("/")[-2:]) if location else ""


def call(entry: EntryFacts) -> str:
    """Write a call: operation, reduction, dtype and shape."""
    return f"{entry.operation} {arguments(entry)}".rstrip()


def arguments(entry: EntryFacts) -> str:
    """Write what all ranks must agree on: reduction, root, dtype and shape; nothing for a barrier."""
    operation = entry.operation
    if operation == "barrier":
        return ""
    root = f"root {entry.root} " if entry.is_rooted else ""
    how = f"{entry.op} " if operation in ("all_reduce", "reduce", "reduce_scatter") else ""
    where = " on cuda" if entry.device == "cuda" else ""
    return f"{how}{root}{entry.dtype} {shape(entry.shape)}{where}"


def seconds(value: float) -> str:
    """Write a duration briefly."""
    return f"{value * 1000:.0f} ms" if value < 1 else f"{value:.3g} s"


def operation(entry: EntryFacts) -> str:
    """Name an operation under way or past: its number and where in the program it was called."""
    text = title(entry)
    return f"{text}, {place(entry.location)}" if entry.location else text


def title(entry: EntryFacts) -> str:
    """Name an operation by its number, or a message by its other side."""
    if not entry.is_message:
        return f"{entry.operation} #{entry.seq}"
    far = far_rank(entry.root)
    other = f"rank {far} on another host" if far is not None else "any rank" if entry.root < 0 else f"rank {entry.root}"
    tag = f" tag {entry.count}" if entry.count else ""
    return f"{entry.operation} {'to' if entry.operation == 'send' else 'from'} {other}{tag}"


def size(size_bytes: float) -> str:
    """Write a number of bytes briefly."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size_bytes < 1024 or unit == "GiB":
            return f"{size_bytes:.0f} B" if unit == "B" else f"{size_bytes:.1f} {unit}"
        size_bytes /= 1024
    raise AssertionError
