"""`phalanx run` as a user starts it, in a process of its own."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests import leftovers

COMMAND = [sys.executable, "-c", "from phalanx.cli.run import run; run(prog_name='phalanx run')"]
LIMIT_S = 60


def phalanx_run(*arguments: object, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a job to its end."""
    options = {"capture_output": True, "timeout": LIMIT_S, "text": True, "stdin": subprocess.DEVNULL, **options}
    return subprocess.run([*COMMAND, *map(str, arguments)], check=False, **options)


@contextlib.contextmanager
def started_job(*arguments: object, **options: Any) -> Iterator[subprocess.Popen[str]]:
    """Start a job whose output is read; it is ended in any case."""
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, **options}
    with subprocess.Popen([*COMMAND, *map(str, arguments)], stdin=subprocess.DEVNULL, **options) as launcher:
        try:
            yield launcher
        finally:
            launcher.kill()


def write_script(folder: Path, text: str, name: str = "program.py") -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(textwrap.dedent(text))
    return path


def lines_of(text: str, rank: int) -> list[str]:
    """What a rank has printed."""
    prefixes = [f"[{rank}] ", f"[{rank:2}] "]
    return [line[len(prefix) :] for line in text.splitlines() for prefix in prefixes if line.startswith(prefix)]


def descendants(pid: int) -> set[int]:
    """All processes below one, however deep."""
    found: set[int] = set()
    todo = [pid]
    while todo:
        try:
            below = leftovers.children(todo.pop())
        except (FileNotFoundError, ProcessLookupError):
            continue
        found.update(below)
        todo += below
    return found


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def environment_without(*names: str, **changes: str) -> dict[str, str]:
    return {name: value for name, value in {**os.environ, **changes}.items() if name not in names}
