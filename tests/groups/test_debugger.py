from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import phalanx

_PROGRAM = """
import sys

import torch

import phalanx


def body(which):
    group = phalanx.connect(timeout_s=0.5)
    value = torch.ones(1) * group.rank
    phalanx.breakpoint(which)
    group.all_reduce(value)
    print("rank", group.rank, "sum", value.item())


if __name__ == "__main__":
    phalanx.spawn(body, ranks=3, args=(None if sys.argv[1] == "any" else int(sys.argv[1]),), kind=sys.argv[2])
    print("all done")
"""

Start = Callable[..., Any]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start the program on a terminal of its own."""
    pexpect = pytest.importorskip("pexpect", reason="the debugger needs a terminal: pexpect is not installed")
    program = tmp_path / "program.py"
    program.write_text(_PROGRAM)
    children = []

    def start(*args: str) -> Any:
        children.append(pexpect.spawn(sys.executable, [str(program), *args], encoding="utf-8", timeout=60))
        return children[-1]

    yield start
    for child in children:
        child.close(force=True)


def _end(child: Any) -> int:
    child.expect(["\\Z", "$"])
    child.read()
    child.close()
    return int(child.exitstatus)


@pytest.mark.slow
@pytest.mark.parametrize(("which", "kind"), [("2", "process"), ("any", "process"), ("1", "thread")])
def test_one_rank_has_the_terminal_and_the_others_wait_for_it(start: Start, which: str, kind: str) -> None:
    child = start(which, kind)
    child.expect(r"\(rank (\d)\) ")
    assert which in ("any", child.match[1])
    stopped = time.monotonic()
    child.sendline("p group.rank + 40")
    child.expect(f"4{child.match[1]}")
    while time.monotonic() < stopped + 1.5:  # three times as long as an operation may take
        time.sleep(0.05)
    child.sendline("n")
    child.expect(r"\(rank \d\) ")
    child.sendline("p value")
    child.expect(r"tensor\(\[3\.\]\)")
    child.sendline("c")
    child.expect("all done")
    assert _end(child) == 0


@pytest.mark.slow
def test_quitting_ends_the_job_with_a_word(start: Start) -> None:
    child = start("0", "process")
    child.expect(r"\(rank 0\) ")
    child.sendline("q")
    child.expect("rank 0 was ended in the debugger")
    assert _end(child) == 1


@pytest.mark.slow
def test_a_rank_that_dies_at_the_prompt_gives_the_terminal_back(start: Start, tmp_path: Path) -> None:
    child = start("1", "process")
    child.expect(r"\(rank 1\) ")
    child.sendline("import os; os.kill(os.getpid(), 9)")
    child.expect("RankFailedError: rank 1 of 3 was killed by SIGKILL")
    assert _end(child) == 1


@pytest.mark.slow
def test_without_a_terminal_it_is_skipped_with_a_warning(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(_PROGRAM)
    done = subprocess.run(
        [sys.executable, program, "1", "process"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        start_new_session=True,  # no terminal
    )
    assert "breakpoint on rank 1 skipped: there is no terminal to debug in" in done.stderr
    assert "all done" in done.stdout


@pytest.mark.parametrize("rank", [-1, "2", True, 1.0])
def test_a_rank_that_is_no_number_is_refused(rank: Any) -> None:
    with pytest.raises(phalanx.UsageError, match="give the number of a rank"):
        phalanx.breakpoint(rank)
