"""What is seen of real ranks from outside."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest

from phalanx.diagnosis.asking import ask_for_stacks
from phalanx.diagnosis.observation import Observation, from_json, to_json
from phalanx.diagnosis.processes import is_alive
from phalanx.diagnosis.report import render
from tests.diagnosis.jobs import started
from tests.leftovers import wait_until

pytestmark = pytest.mark.slow


def _with_a_late_rank(gate: Path, how: str) -> float:
    import torch

    import phalanx

    def sleeps() -> None:
        while not gate.exists():
            time.sleep(0.01)

    def computes() -> None:
        while not os.path.exists(gate):
            for _ in range(10_000):
                pass

    def calls_native_code() -> None:
        import ctypes

        library = ctypes.PyDLL(None)  # keeps the GIL
        while not gate.exists():
            library.usleep(300_000)

    group = phalanx.connect(timeout_s=50)
    group.barrier()
    if group.rank == 1:
        {"sleeps": sleeps, "computes": computes, "calls_native_code": calls_native_code}[how]()
    tensor = torch.ones(3)
    group.all_reduce(tensor)
    return float(tensor[0])


@pytest.mark.parametrize("how", ["sleeps", "computes", "calls_native_code"])
def test_a_late_rank_is_named_with_its_place(tmp_path: Path, how: str) -> None:
    with started(3, _with_a_late_rank, tmp_path, how) as job:
        place = re.compile(rf"; it is at diagnosis/test_running_jobs.py:\d+ in {how}\n")
        shown = job.wait_for("rank 1 holds up ranks 0, 2, in all_reduce #2", place)
        assert re.search(r"rank 0   pid \d+ +waits .* in all_reduce #2, .*, for rank 1\n", shown)
        assert re.search(r"rank 1   pid \d+ +is at \S+:\d+ in \w+; its last: barrier #1, .*, begun .* ago\n", shown)
        assert job.go_on() == [3.0] * 3


def test_a_stopped_rank_is_told_with_the_way_out(tmp_path: Path) -> None:
    with started(2, _with_a_late_rank, tmp_path, "sleeps") as job:
        job.wait_for("rank 1 holds up rank 0")
        pid = job.pids()[1]
        os.kill(pid, signal.SIGSTOP)
        told = f"rank 1 (pid {pid}) is stopped by a signal; kill -CONT {pid} lets it go on"
        shown = job.wait_for(told, "it can't show its stack: it is stopped")
        assert "rank 1 holds up rank 0" in shown
        os.kill(pid, signal.SIGCONT)
        assert job.go_on() == [2.0] * 2


def test_ranks_that_are_threads_are_told_apart(tmp_path: Path) -> None:
    with started(3, _with_a_late_rank, tmp_path, "sleeps", kind="thread") as job:
        place = re.compile(r"holds up .*; it is at diagnosis/test_running_jobs.py:\d+ in sleeps\n")
        shown = job.wait_for("rank 1 holds up ranks 0, 2, in all_reduce #2", place)
        assert f"ranks 0-2 (pid {os.getpid()})" in shown
        assert job.go_on() == [3.0] * 3


def _loops(gate: Path) -> int:
    import torch

    import phalanx

    group = phalanx.connect(timeout_s=50)
    rounds = 0
    is_over = torch.zeros(1)
    while not is_over.item():
        tensor = torch.full((1000,), float(group.rank + rounds))
        group.all_reduce(tensor)
        assert tensor[0].item() == tensor[-1].item() == sum(rank + rounds for rank in range(group.size))
        rounds += 1
        is_over[0] = float(group.rank == 0 and gate.exists())
        group.broadcast(is_over, root=0)
    return rounds


def test_a_job_that_runs_is_not_blamed(tmp_path: Path) -> None:
    with started(2, _loops, tmp_path) as job:
        # On a busy machine, a rank may really wait that long for the other.
        nobody = r"\A.*\n  no rank (waits in an operation of phalanx|has waited longer than \d+ ms)\n"
        job.wait_for('group "world", ranks 0-1', "all_reduce #", re.compile(nobody))
        job.go_on()


def test_looking_a_hundred_times_disturbs_nobody(tmp_path: Path) -> None:
    with started(2, _loops, tmp_path) as job:
        job.wait_for("all_reduce #", "_loops")
        pids = job.pids()
        # What was seen may have been one rank's, that waited for the other to start.
        assert wait_until(lambda: [text.count("_loops") for text in ask_for_stacks(pids).values()] == [1, 1])
        for _ in range(100):
            answers = ask_for_stacks(pids, timeout_s=10)  # half of one does not say enough
            assert sorted(answers) == sorted(pids)
            assert all("_loops" in text for text in answers.values())
        sizes = [path.stat().st_size for pid in pids for path in Path(f"/proc/{pid}/fd").iterdir() if _is_stacks(path)]
        assert sizes
        assert max(sizes) < 1 << 20
        rounds = job.go_on()
        assert rounds[0] == rounds[1] > 0


def _is_stacks(path: Path) -> bool:
    return os.readlink(path).startswith("/memfd:phalanx-stacks")


def _crosses(gate: Path) -> None:
    import phalanx

    world = phalanx.connect(timeout_s=50)
    first = world.split([0, 2], name="first") if world.rank != 1 else None
    second = world.split([1, 2], name="second") if world.rank != 0 else None
    third = world.split([0, 1], name="third") if world.rank != 2 else None
    waits_in = [first, third, second][world.rank]
    assert waits_in is not None
    waits_in.barrier()


def test_a_deadlock_over_groups_is_shown_as_a_circle(tmp_path: Path) -> None:
    with started(3, _crosses, tmp_path) as job:
        shown = job.wait_for("deadlock: these ranks wait for each other, and none can go on")
        lines = shown.splitlines()[2:5]
        for waiting, late, name in ((0, 2, "first"), (2, 1, "second"), (1, 0, "third")):
            told = rf'  rank {waiting} waits for rank {late} in barrier #1, .*, group "{name}"'
            assert any(re.fullmatch(told, line) for line in lines), lines
        assert 'group "second", ranks 1-2' in shown, "members are told by their numbers in the job"
        assert re.search(r"rank 2   pid \d+ +waits .* in barrier #1, .*, for rank 1\n", shown)


def _receives(gate: Path, is_any: bool) -> None:
    import torch

    import phalanx

    world = phalanx.connect(timeout_s=50)
    if world.rank == 2:
        tensor = torch.ones(2)
        if is_any:
            world.recv(tensor, tag=7)
        else:
            world.recv(tensor, source=1, tag=7)
    while not gate.exists():
        time.sleep(0.01)
    if world.rank == 1:
        world.send(torch.ones(2), 2, tag=7)


def test_a_message_that_nobody_sends_is_told(tmp_path: Path) -> None:
    with started(3, _receives, tmp_path, False) as job:
        shown = job.wait_for("rank 1 holds up rank 2, in recv from rank 1 tag 7")
        assert "deadlock" not in shown
        assert re.search(r"rank 2   pid \d+ +waits .* in recv from rank 1 tag 7, .*, for rank 1\n", shown)
        job.gate.touch()


def test_a_message_from_anybody_blames_nobody(tmp_path: Path) -> None:
    with started(3, _receives, tmp_path, True) as job:
        shown = job.wait_for("in recv from any rank tag 7", ": no rank has sent it")
        assert "holds up" not in shown
        job.gate.touch()


def _loses_a_rank(gate: Path) -> None:
    import phalanx

    group = phalanx.connect(timeout_s=50)
    group.barrier()
    if group.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    with contextlib.suppress(phalanx.PeerDiedError):
        group.barrier()
    while not gate.exists():
        time.sleep(0.01)


def test_a_broken_group_tells_who_died(tmp_path: Path) -> None:
    with started(3, _loses_a_rank, tmp_path, tolerate_losses=True) as job:
        died = re.compile(r"rank 1   pid \d+ +was killed by SIGKILL \(signal 9\); its last: barrier #1")
        failed = re.compile(r"rank 0   pid \d+ +failed in barrier #2")
        job.wait_for('group "world" is broken in operation #2: rank 1 died', died, failed)
        job.go_on()


def _has_children(gate: Path) -> int:
    import phalanx

    group = phalanx.connect(timeout_s=50)
    child = 0
    if group.rank == 1:
        child = os.fork()
        if child == 0:
            _be_a_child(gate)
            os._exit(7)
        plain = subprocess.Popen(["sleep", "50"])
        gate.with_name("children").write_text(f"{child} {plain.pid}")
    while not gate.exists():
        time.sleep(0.01)
    if child:
        plain.kill()
        plain.wait()
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return 0


def _stacks_of(pid: int, seen: Observation) -> str:
    return next((process.stacks for process in seen.processes if process.pid == pid), "")


def _be_a_child(gate: Path) -> None:
    while not gate.exists():
        time.sleep(0.01)


def test_a_child_answers_for_itself_or_is_not_asked(tmp_path: Path) -> None:
    """A forked one has its parent's memory and its parent's handler, and must not write into the parent's answer."""
    with started(2, _has_children, tmp_path) as job:
        job.wait_for("_has_children")
        note = tmp_path / "children"
        assert wait_until(lambda: note.exists() and bool(note.read_text()))
        forked, plain = map(int, note.read_text().split())
        assert wait_until(lambda: "_be_a_child" in _stacks_of(forked, job.look()))
        for _ in range(5):
            seen = job.look()
            assert {process.pid for process in seen.processes if "_be_a_child" in process.stacks} <= {forked}
        job.wait_for("_has_children")
        assert not ask_for_stacks([plain, os.getppid()])
        assert is_alive(forked)
        assert is_alive(plain)
        assert job.go_on() == [0, 7]


def test_a_flight_record_reads_the_same(tmp_path: Path) -> None:
    with started(2, _with_a_late_rank, tmp_path, "sleeps") as job:
        job.wait_for("rank 1 holds up rank 0")
        seen = job.look()
        assert render(from_json(to_json(seen), "here")) == render(seen)
        job.go_on()
