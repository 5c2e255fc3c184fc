"""The live view on a real terminal."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.jobs.launching import COMMAND, write_script

pexpect: Any = pytest.importorskip("pexpect", reason="the live view needs a terminal: pexpect is not installed")
pytestmark = pytest.mark.slow
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


@pytest.fixture
def script(tmp_path: Path) -> Path:
    return write_script(
        tmp_path,
        """
        import sys, time
        from pathlib import Path
        import torch, phalanx
        group = phalanx.connect()
        group.all_reduce(torch.ones(1000))
        print("\\x1b[31mred words\\x1b[0m", flush=True)
        print("old\\rbar 50%", end="", file=sys.stderr, flush=True)
        until = time.monotonic() + 60
        while group.rank == 1 and not Path(sys.argv[1]).exists() and time.monotonic() < until:
            time.sleep(0.01)
        group.barrier()
        print(" and gone", file=sys.stderr)
        """,
        "train.py",
    )


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    return tmp_path / "go on"


@pytest.fixture
def terminals() -> Iterator[list[Any]]:
    opened: list[Any] = []
    yield opened
    for child in opened:
        child.close(force=True)


def _start(terminals: list[Any], *arguments: object, columns: int = 120) -> Any:
    # pytest-xdist tells its workers how wide its own terminal is.
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
    child = pexpect.spawn(
        COMMAND[0],
        [*COMMAND[1:], *map(str, arguments)],
        dimensions=(24, columns),
        timeout=100,
        encoding="utf-8",
        env={**environment, "TERM": "xterm-256color"},
    )
    terminals.append(child)
    return child


def test_a_terminal_shows_the_ranks_and_their_lines(script: Path, terminals: list[Any], gate: Path) -> None:
    child = _start(terminals, "-n", 2, script, gate)
    child.expect("phalanx run  train  2 ranks")
    child.expect("starting")
    child.expect(r"\[rank \d\]\x1b\[0m \x1b\[31mred words\x1b\[0m")
    child.expect(r"waiting[^\n]*barrier #2, train.py:\d+, for rank 1 [^\n]*bar 50%")
    gate.touch()
    child.expect("phalanx run: 2 ranks done in ")
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == 0


def test_ctrl_c_ends_the_job_and_leaves_a_clean_terminal(script: Path, terminals: list[Any], gate: Path) -> None:
    child = _start(terminals, "-n", 2, script, gate)
    child.expect("for rank 1")
    child.sendintr()
    child.expect("phalanx run: ended by SIGINT")
    child.expect("exit code   130")
    child.expect(pexpect.EOF)
    assert "^C" not in _ESCAPES.sub("", child.before or "")
    child.close()
    assert child.exitstatus == 130


def test_plain_can_be_had_on_a_terminal_too(script: Path, terminals: list[Any]) -> None:
    child = _start(terminals, "-n", 2, "--plain", script, script)
    child.expect(pexpect.EOF)
    lines = sorted(child.before.split("\r\n"))
    assert lines == [
        "",
        *[f"[{rank}] {text}" for rank in (0, 1) for text in ("\x1b[31mred words\x1b[0m", "bar 50% and gone")],
    ]


def test_a_terminal_that_goes_away_ends_the_job(script: Path, terminals: list[Any], gate: Path) -> None:
    child = _start(terminals, "-n", 2, script, gate)
    child.expect("for rank 1")
    with open(os.devnull) as nothing:  # child.close() would send signals of its own after a tenth of a second
        os.dup2(nothing.fileno(), child.child_fd)
    deadline = time.monotonic() + 30
    while child.isalive() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert child.exitstatus == 128 + signal.SIGHUP or child.signalstatus == signal.SIGHUP


def test_the_view_can_leave_the_terminal_to_somebody_else(tmp_path: Path, terminals: list[Any]) -> None:
    script = write_script(
        tmp_path,
        """
        from phalanx.jobs.live_view import LiveView
        from phalanx.jobs.rank import JobRank
        view = LiveView(1, "train")
        view.update([JobRank(0)])
        view.pause()
        for number in range(6):
            view.show_lines(0, False, [b"%d" % number * (1 << 20)])
        view.show_lines(0, False, [b"held back"])
        view.update([JobRank(0)])
        assert not view.is_full()  # whoever has the terminal may print: it must not wait for us
        print("somebody else:", input("? "))
        view.resume()
        view.update([JobRank(0)])
        view.close()
        """,
    )
    child = pexpect.spawn(COMMAND[0], [str(script)], dimensions=(24, 80), timeout=100, encoding="utf-8")
    child.searchwindowsize = 1 << 14  # without it, every read searches all megabytes that have come before
    terminals.append(child)
    child.expect(r"\? ")
    assert "held back" not in child.before
    child.sendline("typed")
    child.expect("typed\r\nsomebody else: typed")  # what is typed can be seen
    child.expect("held back")
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == 0
