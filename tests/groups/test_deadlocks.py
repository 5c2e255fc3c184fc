"""Ranks that wait for each other get an error with the circle, long before their timeout, and only then."""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import phalanx
from tests.leftovers import wait_until
from tests.run_ranks import run_ranks

pytestmark = pytest.mark.slow
_LIMIT_S = 50.0  # far from the 600 s after which an operation times out
_LONG_S = 4.0  # ranks that have waited so long were looked at several times


def _two_groups(group: Any) -> None:
    a, b = group.split([0, 1]), group.split([0, 1])
    for each in (a, b) if group.rank == 0 else (b, a):
        each.all_reduce(torch.ones(3))


def _two_groups_asynchronously(group: Any) -> None:
    a, b = group.split([0, 1]), group.split([0, 1])
    (a if group.rank == 0 else b).all_reduce(torch.ones(3), async_op=True).wait()


def _both_receive(group: Any) -> None:
    group.recv(torch.ones(3), source=1 - group.rank)


def _both_send_much(group: Any) -> None:
    group.send(torch.ones(1 << 20), destination=1 - group.rank)


def _both_wait_for_their_receives(group: Any) -> None:
    works = [group.recv(torch.ones(3), source=1 - group.rank, tag=tag, async_op=True) for tag in (1, 2)]
    for work in works:
        work.wait()


def _receive_from_anybody(group: Any) -> None:
    group.recv(torch.ones(3))


def _collective_against_message(group: Any) -> None:
    if group.rank == 0:
        group.barrier()
    else:
        group.recv(torch.ones(3), source=0)


_DEADLOCKS = [
    _two_groups,
    _two_groups_asynchronously,
    _both_receive,
    _both_send_much,
    _both_wait_for_their_receives,
    _receive_from_anybody,
    _collective_against_message,
]


@pytest.mark.ranks(2)
@pytest.mark.parametrize("program", _DEADLOCKS)
def test_ranks_that_wait_for_each_other_learn_it_soon(group: Any, program: Callable[[Any], None]) -> None:
    _expect_deadlock(group, program)


def test_ranks_that_are_threads_learn_it_too() -> None:
    """In a process of their own, because pytest-xdist has a thread in this one."""
    program = "from tests.groups import test_deadlocks; test_deadlocks.expect_deadlocks_of_threads()"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=200, check=False)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.split() == [program.__name__ for program in _DEADLOCKS]


def expect_deadlocks_of_threads() -> None:
    for program in _DEADLOCKS:
        phalanx.spawn(lambda program=program: _expect_deadlock(phalanx.connect(), program), ranks=2, kind="thread")
        print(program.__name__)


def _expect_deadlock(group: Any, program: Callable[[Any], None]) -> None:
    began = time.monotonic()
    with pytest.raises(phalanx.DeadlockError) as caught:
        program(group)
    assert time.monotonic() - began < _LIMIT_S
    error = caught.value
    assert isinstance(error, phalanx.OperationTimeoutError)
    assert error.verdict == "deadlock"
    assert error.culprits == ((1 - group.rank,) if program is not _receive_from_anybody else ())
    lines = str(error).splitlines()
    assert "deadlock: ranks 0-1 wait for each other" in lines[0]
    circle = [line.removeprefix("  cycle").strip() for line in lines if " waits for rank " in line]
    waits = [line.partition(" in ")[0] for line in circle]
    assert sorted(waits) == ["rank 0 waits for rank 1", "rank 1 waits for rank 0"]
    assert str(error).count(f"groups/{Path(__file__).name}:") == 3


@pytest.mark.ranks(5)
def test_a_ring_and_those_who_wait_for_it(group: Any, rank: int) -> None:
    wait = group.barrier if rank == 4 else functools.partial(group.recv, torch.ones(1), source=(rank + 1) % 4)
    with pytest.raises(phalanx.DeadlockError, match="ranks 0-3 wait for each other"):
        wait()


@pytest.mark.ranks(2, backend="phalanx")
def test_calls_of_torch_get_it_too(process_group: Any, rank: int) -> None:
    other = dist.new_group([0, 1], backend="phalanx")
    with pytest.raises(phalanx.DeadlockError, match="ranks 0-1 wait for each other"):
        dist.all_reduce(torch.ones(3), group=other if rank == 0 else process_group)


@pytest.mark.ranks(2, gpus="virtual")
def test_the_thread_of_the_backward_pass_is_no_second_caller(process_group: Any, rank: int) -> None:
    torch.cuda.set_device(rank)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1).cuda())
    model(torch.ones(2, 4, device="cuda")).sum().backward()
    other = dist.new_group([0, 1])
    with pytest.raises(RuntimeError, match="wait for each other") as caught:
        dist.all_reduce(torch.ones(3, device="cuda"), group=other if rank == 1 else process_group)
    assert "timeout" not in str(caught.value).splitlines()[0]


def _waited_s(group: Any, of_rank: int | None = None) -> float:
    doing = group.snapshot()[group.rank if of_rank is None else of_rank].collective
    return 0.0 if doing is None else float(doing.seconds_ago)


@pytest.mark.ranks(2, kind=["process", "thread"])
def test_a_second_thread_that_makes_the_call_later_is_waited_for(group: Any, rank: int) -> None:
    a, b, of_helpers = (group.split([0, 1]) for _ in range(3))
    mine, other = (a, b) if rank == 0 else (b, a)
    is_known, is_done = threading.Event(), threading.Event()

    def call_later() -> None:
        of_helpers.barrier()
        is_known.set()
        assert wait_until(lambda: is_done.is_set() or _waited_s(mine) > _LONG_S, _LIMIT_S)
        other.all_reduce(torch.ones(3))

    helper = threading.Thread(target=call_later)
    helper.start()
    assert is_known.wait(_LIMIT_S)
    tensor = torch.ones(3)
    mine.all_reduce(tensor)
    is_done.set()
    helper.join()
    assert tensor.tolist() == [2, 2, 2]


@pytest.mark.ranks(2)
def test_a_thread_that_has_never_called_anything_may_do_so(group: Any, rank: int) -> None:
    requests, answers = group.split([0, 1]), group.split([0, 1])
    tensor = torch.ones(1)

    def produce() -> None:
        assert wait_until(lambda: _mail_waited_s(answers) > _LONG_S, _LIMIT_S)
        requests.send(torch.full((1,), 7.0), destination=1)

    if rank == 0:
        producer = threading.Thread(target=produce)
        producer.start()
        answers.recv(tensor, source=1)
        producer.join()
    else:
        requests.recv(tensor, source=0)
        answers.send(tensor, destination=0)
    assert tensor.item() == 7


def _mail_waited_s(group: Any) -> float:
    mail = group.snapshot()[group.rank].mail
    return 0.0 if mail is None else float(mail.seconds_ago)


@pytest.mark.ranks(2)
def test_a_thread_that_only_waits_for_a_message_is_not_the_caller(group: Any, rank: int) -> None:
    tensor = torch.zeros(1)
    work = group.recv(tensor, source=1 - rank, async_op=True)
    waiter = threading.Thread(target=work.wait)
    waiter.start()
    # Instead of this, a program computes. The peer may have done so for longer.
    assert wait_until(lambda: work.done() or _mail_waited_s(group) > _LONG_S, _LIMIT_S)
    group.send(torch.full((1,), float(rank)), destination=1 - rank)
    waiter.join()
    assert tensor.item() == 1 - rank


@pytest.mark.ranks(2)
def test_messages_may_be_awaited_under_the_profiler(process_group: Any, rank: int) -> None:
    tensor = torch.zeros(1)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
        work = dist.irecv(tensor, 1 - rank)
        assert work is not None
        began = time.monotonic()
        while time.monotonic() - began < _LONG_S:
            sum(range(10_000))  # the profiler would need a minute for as many operations of torch
        dist.isend(torch.full((1,), float(rank)), 1 - rank)
        work.wait()
    assert tensor.item() == 1 - rank


@pytest.mark.ranks(2)
def test_a_handler_of_a_signal_may_make_the_call_in_the_middle_of_a_wait(group: Any, rank: int) -> None:
    of_handler = group.split([0, 1])
    pids = group.all_gather_object(os.getpid())

    def call_late(*_: object) -> None:
        assert wait_until(lambda: _waited_s(of_handler, of_rank=1) > _LONG_S, _LIMIT_S)
        of_handler.barrier()

    if rank == 0:
        signal.signal(signal.SIGUSR1, call_late)
        group.barrier()
    else:
        group.barrier()
        assert wait_until(lambda: group.snapshot()[0].sleeps_for == 1, _LIMIT_S)
        os.kill(pids[0], signal.SIGUSR1)
        of_handler.barrier()
    tensor = torch.ones(1)
    group.all_reduce(tensor)
    assert tensor.item() == 2


@pytest.mark.ranks(2)
def test_a_group_with_a_short_timeout_is_left_to_it(group: Any, rank: int) -> None:
    optional = group.split([0, 1])
    optional.set_timeout(_LONG_S)
    tensor = torch.ones(1)
    if rank == 0:
        with pytest.raises(phalanx.OperationTimeoutError) as caught:
            optional.all_reduce(torch.ones(1))
        assert not isinstance(caught.value, phalanx.DeadlockError)
    group.all_reduce(tensor)
    assert tensor.item() == 2


@pytest.mark.ranks(2)
def test_a_timeout_of_its_own_is_kept(group: Any, rank: int) -> None:
    tensor = torch.full((3,), float(rank))
    with pytest.raises(phalanx.OperationTimeoutError) as caught:
        group.recv(torch.ones(3), source=1 - rank, timeout_s=_LONG_S)
    assert not isinstance(caught.value, phalanx.DeadlockError)
    group.all_reduce(tensor)  # the group is whole
    assert tensor.tolist() == [1, 1, 1]


def test_the_old_way_can_be_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    def program() -> float:
        group = phalanx.connect()
        tensor = torch.zeros(1)
        # A thread that could send would be a reason to see no deadlock. No error may come before the handler's call.
        signal.signal(signal.SIGALRM, lambda *_: group.send(torch.ones(1), destination=1 - group.rank, async_op=True))
        group.barrier()
        signal.setitimer(signal.ITIMER_REAL, 2 * _LONG_S)
        group.recv(tensor, source=1 - group.rank)
        group.barrier()
        return tensor.item()

    monkeypatch.setenv("PHALANX_DEADLOCK", "wait")
    assert run_ranks("process", 2, program) == [1, 1]


def test_the_default_can_be_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def program() -> None:
        group = phalanx.connect()
        group.recv(torch.ones(3), source=1 - group.rank)

    monkeypatch.setenv("PHALANX_DEADLOCK", "raise")
    with pytest.raises(phalanx.DeadlockError):
        run_ranks("process", 2, program)


def test_another_value_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PHALANX_DEADLOCK", "off")
    with pytest.raises(phalanx.UsageError, match='PHALANX_DEADLOCK is "off"; give "raise" or "wait"'):
        run_ranks("thread", 1, phalanx.connect)


def _exchange_while_stopped() -> int:
    group = phalanx.connect()
    half = group.split([0, 1])
    assert half is not None
    helper = os.fork()
    if helper == 0:
        for _ in range(3):  # each time longer than a look, in the middle of anything
            time.sleep(0.1 + 0.05 * group.rank)
            os.kill(os.getppid(), signal.SIGSTOP)
            time.sleep(1.7)
            os.kill(os.getppid(), signal.SIGCONT)
        os._exit(0)
    rounds, is_over, peer, numel = 0, False, 1 - group.rank, 1 << 20
    while not all(group.all_gather_object(is_over)):
        work = group.recv(torch.empty(numel), source=peer, async_op=True)
        group.send(torch.ones(numel), destination=peer)
        half.all_reduce(torch.ones(numel))
        work.wait()
        rounds += 1
        is_over = is_over or os.waitpid(helper, os.WNOHANG) != (0, 0)
    return rounds


def test_ranks_that_are_stopped_in_the_middle_of_messages_are_no_deadlock() -> None:
    assert min(run_ranks("process", 2, _exchange_while_stopped)) > 0
