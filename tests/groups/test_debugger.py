from __future__ import annotations

import os
import re
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


_PLAIN = """
import os

import phalanx

group = phalanx.connect(timeout_s=0.5)
value = 7 * group.rank
if group.rank == 1:
    breakpoint(header="look here")
group.barrier()
print("rank", group.rank, "value", value)
"""


@pytest.mark.slow
def test_python_s_own_breakpoint_stops_a_rank_of_a_job(tmp_path: Path) -> None:
    pexpect = pytest.importorskip("pexpect", reason="the debugger needs a terminal: pexpect is not installed")
    program = tmp_path / "plain.py"
    program.write_text(_PLAIN)
    command = ["-m", "phalanx.cli", "run", "-n", "2", str(program)]
    child = pexpect.spawn(sys.executable, command, encoding="utf-8", timeout=60)
    try:
        child.expect(r"rank 1 \(pid \d+\) has the terminal")
        child.expect("look here")
        child.expect(r"\(rank 1\) ")
        child.sendline("p value * 6")
        child.expect("42")
        child.expect(r"\(rank 1\) ")
        child.sendline("c")
        child.expect("rank 1.* value 7")
        assert _end(child) == 0
    finally:
        child.close(force=True)


@pytest.mark.slow
def test_python_s_own_breakpoint_is_skipped_with_a_warning_where_there_is_no_terminal(tmp_path: Path) -> None:
    program = tmp_path / "plain.py"
    program.write_text(_PLAIN)
    done = _run_without_terminal(program)
    assert done.returncode == 0, done.stderr
    assert f"{program}:9: RuntimeWarning: breakpoint on rank 1 skipped: there is no terminal" in done.stderr
    assert "rank 1 value 7" in done.stdout


@pytest.mark.slow
def test_python_s_own_breakpoint_is_the_user_s_choice(tmp_path: Path) -> None:
    program = tmp_path / "plain.py"
    program.write_text(_PLAIN)
    done = _run_without_terminal(program, PYTHONBREAKPOINT="0")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.slow
def test_a_debugger_that_reads_the_end_of_its_input_says_what_to_call_instead(tmp_path: Path) -> None:
    program = tmp_path / "plain.py"
    program.write_text("import pdb\npdb.set_trace()\nprint(1)\n")
    done = _run_without_terminal(program)
    assert done.returncode == 1
    advice = r"^\[[01]\]   do       call breakpoint\(\) or phalanx\.breakpoint\(rank=\.{3}\), which stop on the"
    assert re.search(advice, done.stderr, re.M), done.stderr


def _run_without_terminal(program: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "phalanx.cli", "run", "-n", "2", str(program)],
        env={**os.environ, **variables},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        start_new_session=True,  # without a terminal
    )


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
