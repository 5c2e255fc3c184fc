"""`phalanx run` as a user starts it, in a process of its own."""

from __future__ import annotations

import contextlib
import os
import pickle
import socket
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from phalanx.engine import create_group_segment
from phalanx.jobs.program import Program
from phalanx.jobs.rank import JobRank
from phalanx.jobs.script import RankTask, run_script_rank
from phalanx.jobs.streams import open_pipes
from phalanx.launch.rank_process import StartRequest
from phalanx.launch.zygote_client import ZygoteClient
from tests import leftovers

COMMAND = [sys.executable, "-m", "phalanx.cli", "run"]
LIMIT_S = 120


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


def run_one_rank(zygote: ZygoteClient, program: Program) -> tuple[str, str, int]:
    """Run a program as the only rank; return what it printed and how it ended."""
    world = create_group_segment("world", 1, crowd=1)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.settimeout(LIMIT_S)
    request = StartRequest(
        num_ranks=1,
        payload=pickle.dumps(RankTask(program, [{}], 1024)),
        environment=dict(os.environ),
        folder=os.getcwd(),
        path=[],
        arguments=[],
        meeting="nowhere",
        num_threads=1,
        entry=run_script_rank,
        num_shared=2,
    )
    with ours, open_pipes([JobRank(0)]) as pipes, open(os.devnull) as stdin:
        with theirs:
            zygote.start(request, [theirs.fileno(), world.descriptor, stdin.fileno(), *pipes.theirs])
        pipes.close_theirs()
        events = [pickle.loads(ours.recv(1 << 16)) for _ in range(3)]
        out, err = (os.read(stream.descriptor, 1 << 16).decode() for stream in pipes.streams)
    world.close_descriptor()
    assert [event[0] for event in events] == ["started", "ended", "all ended"]
    return out, err, events[1][2]


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
