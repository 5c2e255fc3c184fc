"""Jobs that hang when their program has ended: in a thread that is joined, or in a handler that runs at exit."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import phalanx
from phalanx.diagnosis.findings import place_of
from phalanx.diagnosis.stacks import parse_stacks
from phalanx.diagnosis.views import ProcessView
from phalanx.errors import OperationTimeoutError
from phalanx.jobs import script
from tests.diagnosis.jobs import LIMIT_S, diagnose, started_program
from tests.leftovers import wait_until

_IN_A_THREAD = """
import os, threading, time

def save():
    while True:
        time.sleep(0.01)  # here

if os.environ["RANK"] == "1":
    threading.Thread(target=save).start()
"""

_IN_A_HANDLER = """
import atexit, os, time

def save():
    while True:
        time.sleep(0.01)  # here

if os.environ["RANK"] == "1":
    atexit.register(save)
"""

_PROGRAMS = pytest.mark.parametrize(
    ("program", "words"),
    [
        (_IN_A_THREAD, "(the program has ended, and its process waits for this thread)"),
        (_IN_A_HANDLER, "(the program has ended; this runs at its exit)"),
    ],
    ids=["thread", "handler"],
)


def _place(program: str, file: Path) -> str:
    line = next(number for number, text in enumerate(program.splitlines(), 1) if text.endswith("# here"))
    return f"{file.parent.name}/{file.name}:{line} in save"


@pytest.mark.slow
@_PROGRAMS
def test_diagnose_names_the_line_that_the_end_waits_for(tmp_path: Path, program: str, words: str) -> None:
    file = tmp_path / "train.py"
    file.write_text(program)
    wanted = f"  rank 1 is at {_place(program, file)} {words}"
    shown = ""

    def is_shown() -> bool:
        nonlocal shown
        shown = diagnose(str(job.pid)).stdout
        return wanted in shown.splitlines()

    with started_program(str(file), "run", "-n", "2", module="phalanx.cli") as job:
        assert wait_until(is_shown, LIMIT_S), shown


@pytest.mark.slow
@_PROGRAMS
def test_a_time_limit_names_the_line_that_the_end_waits_for(tmp_path: Path, program: str, words: str) -> None:
    file = tmp_path / "train.py"
    file.write_text(program)
    for limit_s in (10, 40):  # a busy machine may need the longer one until the program has ended
        ended = subprocess.run(
            [sys.executable, "-m", "phalanx.cli", "run", "-n", "2", "--timeout", str(limit_s), str(file)],
            capture_output=True, text=True, timeout=2 * LIMIT_S + limit_s, check=False,
        )  # fmt: skip
        assert ended.returncode == 124
        if f"  rank 1 is at {_place(program, file)} {words}" in ended.stderr.splitlines():
            return
    pytest.fail(ended.stderr)


def _leave_a_thread() -> None:
    import threading
    import time

    def save() -> None:
        while True:
            time.sleep(0.01)

    threading.Thread(target=save).start()


@pytest.mark.slow
def test_spawn_names_the_line_that_the_end_waits_for() -> None:
    for limit_s in (3, 30):  # as above
        with pytest.raises(OperationTimeoutError) as caught:
            phalanx.spawn(_leave_a_thread, ranks=2, timeout_s=limit_s)
        if re.search(r"ranks 0-1 at \S+:\d+ in save \(the program has ended, and its process waits", str(caught.value)):
            return
    pytest.fail(str(caught.value))


def _stack(*calls: tuple[str, int, str]) -> str:
    lines = [f'  File "{file}", line {line} in {function}' for file, line, function in calls]
    return "\n".join(["Current thread 0x32c (most recent call first):", *lines, ""])


_JOINING = ("/usr/lib/python3.11/threading.py", 1590, "_shutdown")
_SCRIPT = str(script.__file__)


@pytest.mark.parametrize(
    ("calls", "is_at_exit"),
    [
        ([_JOINING], True),
        ([_JOINING, (_SCRIPT, 250, "_finish")], True),
        ([("/me/train.py", 3, "save"), (_SCRIPT, 250, "_finish"), (_SCRIPT, 120, "run_script_rank")], True),
        ([("/me/train.py", 3, "main"), ("/me/train.py", 9, "<module>"), (_SCRIPT, 120, "run_script_rank")], False),
        ([("/me/train.py", 3, "_shutdown"), ("/me/train.py", 9, "<module>")], False),
        ([(_SCRIPT, 260, "_close_files"), (_SCRIPT, 250, "_finish")], False),
        ([], False),
    ],
)
def test_a_program_has_ended_if_a_launcher_or_python_runs_what_comes_after_it(
    calls: list[tuple[str, int, str]], is_at_exit: bool
) -> None:
    (thread,) = parse_stacks(_stack(*calls))
    assert thread.is_at_exit() is is_at_exit


def test_a_process_that_waits_for_nothing_of_the_program_is_at_its_exit() -> None:
    process = ProcessView(0x32C, "S", 0, [], _stack(_JOINING))
    assert (
        place_of(process) == "python3.11/threading.py:1590 in _shutdown (the program has ended; this runs at its exit)"
    )
