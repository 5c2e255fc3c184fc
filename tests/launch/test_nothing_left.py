"""After a clean end, after an exception, after SIGKILL of whoever started the ranks: nothing stays."""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

import phalanx
from phalanx.launch.rank_process import FAILED_EXIT_CODE, die_with_parent
from tests import leftovers
from tests.engine.real_control_groups import new_group
from tests.run_ranks import Kind, every_kind, run_ranks

_HANGING = """
import os, sys, phalanx
def program():
    group: Any = phalanx.connect()
    print(os.getpid(), os.getppid(), flush=True)
    if group.rank == 0:
        group.barrier()
    else:
        while True:
            sum(range(1000))
phalanx.spawn(program, ranks=2)
"""


def _is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):  # gone, perhaps between opening the file and reading it
        return False
    return state != "Z"


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_ranks_end_with_the_process_that_spawned_them(number: signal.Signals) -> None:
    command = [sys.executable, "-c", _HANGING]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as caller:
        assert caller.stdout is not None
        pids = {int(pid) for _ in range(2) for pid in caller.stdout.readline().split()}
        assert len(pids) == 3
        assert all(map(_is_alive, pids))
        caller.send_signal(number)
        assert caller.wait(20) != 0
    assert leftovers.wait_until(lambda: not any(map(_is_alive, pids)), 10), [p for p in pids if _is_alive(p)]


@pytest.mark.slow
def test_ranks_end_with_the_process_they_were_forked_from() -> None:
    def program() -> None:
        group: Any = phalanx.connect(timeout_s=30)
        if group.rank == 0:
            os.kill(os.getppid(), signal.SIGKILL)
        group.barrier()
        while True:
            sum(range(1000))

    with pytest.raises(phalanx.RankFailedError, match="killed by SIGKILL"):
        run_ranks("process", 2, program)
    assert run_ranks("process", 2, lambda: phalanx.connect().size) == [2, 2], "the next spawn starts a new one"


@every_kind
def test_descriptors_and_segments_do_not_pile_up(kind: Kind) -> None:
    def program() -> None:
        group: Any = phalanx.connect()
        part = group.split([0, 1])
        part.empty(10).fill_(1)
        part.barrier()
        group.all_reduce(torch.ones(10), async_op=True).wait()

    run_ranks(kind, 2, program)
    gc.collect()
    before = len(leftovers.open_descriptors()), len(leftovers.group_memory())
    for _ in range(3):
        run_ranks(kind, 2, program)
    # A rank that is a thread may still be ending, with the last references to its groups.
    assert leftovers.wait_until(lambda: gc.collect() >= 0 and len(leftovers.group_memory()) <= before[1])
    assert leftovers.wait_until(lambda: len(leftovers.open_descriptors()) <= before[0])


@every_kind
def test_a_failed_spawn_leaves_no_descriptors(kind: Kind) -> None:
    def program() -> None:
        group: Any = phalanx.connect()
        if group.rank == 1:
            raise LookupError("on purpose")
        group.barrier()

    def fail() -> None:
        with pytest.raises(LookupError):
            run_ranks(kind, 2, program)

    fail()
    gc.collect()
    before = len(leftovers.open_descriptors())
    for _ in range(3):
        fail()
    gc.collect()
    assert len(leftovers.open_descriptors()) == before
    assert leftovers.wait_until(lambda: not leftovers.rank_processes())


def test_descriptors_of_a_rank_do_not_pile_up() -> None:
    def program() -> tuple[int, int]:
        group: Any = phalanx.connect()

        def use() -> None:
            part = group.split([0, 1])
            part.empty(10).fill_(1)
            part.barrier()
            part.barrier()

        use()
        gc.collect()
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(10):
            use()
        gc.collect()
        return before, len(os.listdir("/proc/self/fd"))

    for before, after in run_ranks("process", 2, program):
        assert after <= before + 1  # the world may open its look-out for the peer late, once


def test_children_of_a_rank_end_with_it() -> None:
    def program() -> int:
        return subprocess.Popen(["sleep", "60"]).pid

    (pid,) = run_ranks("process", 1, program)
    assert leftovers.wait_until(lambda: not _is_alive(pid))


@pytest.mark.parametrize("last_use", ["nothing", "collective", "message"])
def test_a_group_that_nobody_holds_closes_itself(last_use: str) -> None:
    """Whatever it did last: an operation that is over must not keep its group."""
    before = leftovers.group_memory()
    group: Any = phalanx.connect()
    assert len(leftovers.group_memory()) > len(before)
    if last_use == "collective":
        group.all_reduce(torch.ones(3), async_op=True).wait()
    if last_use == "message":
        receive = group.recv(torch.zeros(3), 0, async_op=True)
        group.send(torch.ones(3), 0, async_op=True).wait()
        receive.wait()
        del receive
    del group
    gc.collect()
    assert leftovers.group_memory() == before


def test_a_rank_whose_parent_died_before_it_could_ask_ends_at_once() -> None:
    child = os.fork()
    if child == 0:
        die_with_parent(os.getppid() + 1)  # as if another process had forked it
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == FAILED_EXIT_CODE


def _leave_a_daemon() -> int:
    """Start a process whose parent is gone, in a session of its own, that does not care for SIGTERM; return its id."""
    reader, writer = os.pipe()
    if os.fork() == 0:
        if os.fork() == 0:
            os.setsid()
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            os.write(writer, str(os.getpid()).encode())
            signal.pause()
        os._exit(0)
    os.wait()
    return int(os.read(reader, 100))


@pytest.mark.slow
@pytest.mark.parametrize("how", ["returns", "raises", "is killed"])
def test_daemons_of_a_rank_are_gone_when_spawn_returns(how: str, tmp_path: Path) -> None:
    def program() -> None:
        (tmp_path / os.environ["RANK"]).write_text(str(_leave_a_daemon()))
        if how == "raises":
            raise LookupError("on purpose")
        if how == "is killed":
            os.kill(os.getpid(), signal.SIGKILL)

    with contextlib.suppress(LookupError, phalanx.RankFailedError):
        phalanx.spawn(program, ranks=2, timeout_s=30)
    pids = [int(path.read_text()) for path in tmp_path.iterdir()]
    assert pids
    assert [pid for pid in pids if _is_alive(pid)] == []


@pytest.mark.slow
def test_daemons_of_a_job_do_not_end_while_another_job_of_the_same_process_runs() -> None:
    """Nobody can tell whose they are; they end with the last of both."""

    def other(path: str) -> int:
        pid = _leave_a_daemon()
        Path(path).write_text(str(pid))
        while Path(path).exists():
            time.sleep(0.01)
        return pid if _is_alive(pid) else -pid

    with tempfile.TemporaryDirectory() as folder:
        told = Path(folder) / "daemon"
        with ThreadPoolExecutor() as pool:
            job = pool.submit(phalanx.spawn, other, ranks=1, args=(str(told),), timeout_s=30)
            assert leftovers.wait_until(lambda: told.exists() and told.read_text() != "", 20)
            phalanx.spawn(os.getpid, ranks=1, timeout_s=30)
            told.unlink()
            (pid,) = job.result()
    assert pid > 0, "it ran as long as its own job"
    assert not _is_alive(pid)


_LEAKING = """
import os, resource, sys, phalanx
phalanx.spawn(os.getpid, ranks=1)
names = sorted(os.listdir("/proc/self/fd"))
_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
for most in (len(names) + 3, len(names) + 8, len(names) + 20, 60):
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    try:
        phalanx.spawn(os.getpid, ranks=600)
    except OSError as error:
        print(error.errno, error.strerror)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    assert sorted(os.listdir("/proc/self/fd")) == names, (names, os.listdir("/proc/self/fd"))
assert len(phalanx.spawn(os.getpid, ranks=2)) == 2
"""


@pytest.mark.slow
def test_a_spawn_that_has_too_few_descriptors_leaves_none_and_says_so() -> None:
    done = subprocess.run([sys.executable, "-c", _LEAKING], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    told = done.stdout.splitlines()
    assert len(told) == 8
    assert all(line.startswith(f"{errno.EMFILE} ") and "Too many open files" in line for line in told[::2])
    assert all("Raise the limit of open files" in line or "limit of open files raised" in line for line in told[1::2])


_CROWDED = """
import os, sys, phalanx
from pathlib import Path
folder = Path(sys.argv[1])
(folder / "cgroup.procs").write_text(str(os.getpid()))
(before,) = phalanx.spawn(os.getppid, ranks=1)
(folder / "pids.max").write_text(str(int((folder / "pids.current").read_text()) + 2))
try:
    phalanx.spawn(os.getpid, ranks=8)
except phalanx.RankFailedError as error:
    print(error, error.culprits, error.signal, error.exit_code)
(folder / "pids.max").write_text("max")
(after,) = phalanx.spawn(os.getppid, ranks=1)
assert before == after, "the process that ranks are forked from has survived"
"""


@pytest.mark.slow
def test_a_rank_that_can_not_be_forked_is_named_with_the_limit(tmp_path: Path) -> None:
    with new_group("pids", tmp_path.name) as group:
        command = [sys.executable, "-c", _CROWDED, str(group.folder)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "rank 2 of 8 could not be started: Resource temporarily unavailable (EAGAIN)",
        "  limit    the control group of this process may have no more processes and threads (pids.max)",
        "  do       Raise the limit of processes (`ulimit -u`; docker: --pids-limit). (2,) None None",
    ]
