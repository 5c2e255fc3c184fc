"""Words about ranks that hold up others, while the job runs, and what is kept of it when it has failed."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from phalanx.diagnosis.waits import Wait
from phalanx.jobs.holdups import DEADLOCK_S, Holdups
from tests.diagnosis.observations import entry
from tests.jobs.launching import COMMAND, LIMIT_S, started_job, write_script

_SECOND_NS = 10**9


def _wait(rank: int, waits_for: int, since_s: float = 0, *, is_async: bool = False) -> Wait:
    keys = ((100 + waits_for, 0),)
    barrier = entry(1, "barrier", start_ns=int(since_s * 1e9), is_async=is_async)
    return Wait((100 + rank, 0), rank, keys, (waits_for,), barrier, "world")


def test_a_wait_is_told_after_its_time_and_again_after_twice_as_long() -> None:
    holdups = Holdups(30)
    told = [second for second in range(200) if holdups.is_due([_wait(0, 1)], second * _SECOND_NS)]
    assert told == [30, 60, 120]


def test_a_new_wait_of_the_same_rank_begins_anew() -> None:
    holdups = Holdups(30)
    assert holdups.is_due([_wait(0, 1)], 31 * _SECOND_NS)
    assert not holdups.is_due([_wait(0, 1, since_s=20)], 40 * _SECOND_NS)
    assert holdups.is_due([_wait(0, 1, since_s=20)], 50 * _SECOND_NS)


def test_a_circle_is_told_sooner_but_not_one_that_may_open_by_itself() -> None:
    late = int((DEADLOCK_S + 1) * 1e9)
    assert Holdups(30).is_due([_wait(0, 1), _wait(1, 0)], late)
    assert not Holdups(30).is_due([_wait(0, 1), _wait(1, 0, is_async=True)], late)


def test_nothing_is_told_when_nobody_wants_it() -> None:
    assert not Holdups(0).is_due([_wait(0, 1), _wait(1, 0)], 1000 * _SECOND_NS)
    assert not Holdups(1).is_due([], 1000 * _SECOND_NS)


@pytest.mark.slow
def test_a_job_that_hangs_says_who_holds_it_up_and_a_failed_one_leaves_a_record(tmp_path: Path, records: Path) -> None:
    script = write_script(
        tmp_path,
        """
        import sys, time
        from pathlib import Path
        import torch, phalanx
        group = phalanx.connect()
        group.all_reduce(torch.ones(3))
        def dream():
            while not Path(sys.argv[1]).exists():
                time.sleep(0.01)
            raise ValueError("awake")
        if group.rank == 1:
            dream()
        group.barrier()
        """,
    )
    gate = tmp_path / "gate"
    warned = re.compile(r"phalanx run: rank 1 holds up ranks 0, 2, in barrier #2, .*program\.py:.* in dream")
    with started_job("--warn-after", 0.5, "-n", 3, script, gate) as launcher:
        assert launcher.stderr is not None
        # It warns again and again, at first perhaps of a rank that has not come so far.
        assert any(warned.match(line) for line in launcher.stderr)
        gate.touch()
        told = launcher.communicate(timeout=LIMIT_S)[1]
    assert launcher.returncode == 1
    (record,) = records.glob("*.json")
    assert f"  record      phalanx diagnose {record}\n" in told
    seen = json.loads(record.read_text())
    assert seen["job"]["num_ranks"] == 3
    assert [len(some["operations"]) for some in seen["groups"][0]["records"]] == [2, 1, 2]


@pytest.mark.slow
def test_a_deadlock_is_told_while_the_job_hangs(tmp_path: Path) -> None:
    script = write_script(
        tmp_path,
        """
        import torch, phalanx
        group = phalanx.connect()
        first, second = group.split([0, 1], name="first"), group.split([0, 1], name="second")
        for one in (first, second) if group.rank == 0 else (second, first):
            one.all_reduce(torch.ones(2))
        """,
    )
    with started_job("--warn-after", 1, "--env", "PHALANX_DEADLOCK=wait", "-n", 2, script) as launcher:
        assert launcher.stderr is not None
        lines = [launcher.stderr.readline() for _ in range(3)]
        launcher.send_signal(signal.SIGINT)
        launcher.communicate(timeout=15)
    assert lines[0] == "phalanx run: deadlock: these ranks wait for each other, and none can go on\n"
    assert "rank 0 waits for rank 1 in all_reduce #1" in lines[1]
    assert 'group "first"' in lines[1]
    assert "rank 1 waits for rank 0 in all_reduce #1" in lines[2]
    assert 'group "second"' in lines[2]


@pytest.fixture
def terminal() -> Iterator[list[Any]]:
    opened: list[Any] = []
    yield opened
    for child in opened:
        child.close(force=True)


@pytest.mark.slow
@pytest.mark.parametrize("style", ["--live", "--plain"])
def test_a_rank_at_a_breakpoint_has_the_terminal_and_the_job_s_time_stands_still(
    tmp_path: Path, terminal: list[Any], style: str
) -> None:
    pexpect = pytest.importorskip("pexpect", reason="the debugger needs a terminal: pexpect is not installed")
    script = write_script(
        tmp_path,
        """
        import sys, torch, phalanx
        group = phalanx.connect(timeout_s=float(sys.argv[1]))
        value = torch.ones(1)
        phalanx.breakpoint(1)
        print("x" * 300_000)
        group.all_reduce(value)
        print("sum", value.item())
        """,
    )
    for scale in (1, 4):  # on a busy machine, the job may need all its time before the breakpoint
        arguments = [*COMMAND[1:], "--timeout", str(6 * scale), style, "-n", "3", str(script), str(scale)]
        child = pexpect.spawn(COMMAND[0], arguments, encoding="utf-8", timeout=30 * scale, dimensions=(24, 100))
        terminal.append(child)
        if child.expect([r"\(rank 1\) ", pexpect.EOF]) == 0:
            _debug(pexpect, child, num_looks=4 * scale)
            child.close()
            if child.exitstatus == 0 or scale > 1:
                break
    assert child.exitstatus == 0


def _debug(pexpect: Any, child: Any, num_looks: int) -> None:
    for _ in range(num_looks):  # longer than the job, and any operation, may take
        with pytest.raises(pexpect.TIMEOUT):
            child.expect("sum|not done|timed out", timeout=2)
        child.sendline("p 40 + group.rank")
        child.expect("41\r\n")  # other ranks may print in between
        child.expect(r"\(rank 1\) ")
    child.sendcontrol("z")  # stops nobody: no shell would take over
    child.sendline()
    child.expect("non-printable character")
    child.expect(r"\(rank 1\) ")
    child.sendline("n")  # more than a pipe takes
    child.expect(r"\(rank 1\) ")
    child.sendline("c")
    if child.expect([r"sum 3\.0", "not done after", "timed out"]) == 0:
        for _ in range(2):
            child.expect(r"sum 3\.0")
    child.expect(pexpect.EOF)
