"""A rank that does not come is named, with what it does instead."""

from __future__ import annotations

import signal
from datetime import timedelta
from typing import Any

import pytest
import torch

import phalanx
from tests.checks import Stopwatch, check, contains, equal, raised
from tests.run_ranks import Kind, World, every_kind, run_ranks, worlds


def _line_of(marker: str) -> int:
    with open(__file__) as lines:
        return next(number for number, line in enumerate(lines, 1) if line.rstrip().endswith(f"# {marker}"))


@worlds(2, 3)
def test_a_timeout_names_the_missing_rank_and_where_it_is(world: World) -> None:
    """The late rank left a barrier of this group and waits in another group, so the journal shows the barrier."""

    def program() -> str:
        group, other = phalanx.connect(timeout_s=0.2), phalanx.connect(timeout_s=20)
        group.barrier(timeout_s=20)  # the last common call
        text = ""
        if group.rank != 1:
            watch = Stopwatch()
            error = raised(phalanx.OperationTimeoutError, group.all_reduce, torch.ones(3))
            check(0.19 < watch.seconds() < 2, watch.seconds())
            equal((error.culprits, error.operation, error.sequence), ((1,), "all_reduce", 2))
            check(isinstance(error, TimeoutError))
            text = str(error)
        other.barrier()
        return text

    for rank, text in enumerate(world.run(program)):
        if rank == 1:
            continue
        lines = text.splitlines()
        assert "rank 1 did not come" in lines[0]
        assert "timed out" in lines[0]
        missing = next(line for line in lines if line.startswith("  missing"))
        assert f"left barrier #1, errors/test_timeout.py:{_line_of('the last common call')}, begun" in missing
        assert "do       find out why it is late, or give a longer timeout (timeout_s)" in text
        assert f"here     rank {rank} of {world.ranks} called all_reduce sum float32 (3,)" in text


@worlds(2)
def test_a_rank_that_comes_too_late_hears_of_the_timeout(world: World) -> None:
    def program() -> None:
        group, other = phalanx.connect(timeout_s=20), phalanx.connect(timeout_s=20)
        if group.rank == 0:
            raised(phalanx.OperationTimeoutError, group.barrier, timeout_s=0.05)
            other.barrier()
        else:
            other.barrier()
            error = raised(phalanx.OperationTimeoutError, group.barrier)
            contains(error, "rank 0 timed out", "rank 1")

    world.run(program)


@worlds(2)
def test_a_missing_rank_that_waits_for_a_message_is_described_so(world: World) -> None:
    def program() -> str:
        group, other = phalanx.connect(timeout_s=20), phalanx.connect(timeout_s=20)
        if group.rank == 0:
            other.barrier()
            error = raised(phalanx.OperationTimeoutError, group.barrier, timeout_s=0.3)
            return str(error)
        work: Any = other.barrier(async_op=True)
        try:
            group.recv(torch.ones(1), 0)  # the wrong wait
        except phalanx.OperationTimeoutError as error:
            contains(error, "recv")
        work.wait()
        return ""

    text = world.run(program)[0]
    assert f"waits in recv from rank 0, errors/test_timeout.py:{_line_of('the wrong wait')}" in text


@worlds(2)
def test_the_timeout_of_a_call_beats_that_of_the_group(world: World) -> None:
    def program() -> None:
        group, other = phalanx.connect(timeout_s=300), phalanx.connect(timeout_s=20)
        if group.rank == 0:
            watch = Stopwatch()
            error = raised(phalanx.OperationTimeoutError, group.barrier, timeout_s=timedelta(milliseconds=1))
            contains(error, "timed out after 1 ms")
            check(watch.seconds() < 2, watch.seconds())
        other.barrier()

    world.run(program)


@worlds(3, 4)
def test_all_missing_ranks_are_named(world: World) -> None:
    def program() -> None:
        group, other = phalanx.connect(timeout_s=0.1), phalanx.connect(timeout_s=20)
        if group.rank == 0:
            error = raised(phalanx.OperationTimeoutError, group.all_reduce, torch.ones(100_000))
            equal(error.culprits, tuple(range(1, group.size)))
            contains(error, f"ranks 1-{group.size - 1} did not come", "has not called anything yet")
        other.barrier()

    world.run(program)


@worlds(2)
def test_messages_that_do_not_come_time_out_and_leave_the_group_usable(world: World) -> None:
    def program() -> None:
        group = phalanx.connect(timeout_s=20)
        if group.rank == 0:
            error = raised(phalanx.OperationTimeoutError, group.recv, torch.ones(1), 1, 5, timeout_s=0.05)
            contains(error, "recv", "timed out after 50 ms, waiting for rank 1")
            equal((error.culprits, error.operation), ((1,), "recv"))
            error = raised(phalanx.OperationTimeoutError, group.recv, torch.ones(1), timeout_s=0.05)
            contains(error, "waiting for any rank")
            equal(error.culprits, ())
            work = group.recv(torch.ones(1), 1, 6, async_op=True, timeout_s=0.05)
            raised(phalanx.OperationTimeoutError, work.wait)
        group.barrier()
        tensor = torch.zeros(1)
        if group.rank == 0:
            group.recv(tensor, 1)
            equal(float(tensor), 4.0)
        else:
            group.send(torch.full((1,), 4.0), 0)

    world.run(program)


@worlds(2)
@pytest.mark.slow
def test_a_large_message_nobody_takes_times_out(world: World) -> None:
    def program() -> None:
        group, other = phalanx.connect(timeout_s=20), phalanx.connect(timeout_s=20)
        if group.rank == 0:
            error = raised(phalanx.OperationTimeoutError, group.send, torch.ones(3_000_000), 1, timeout_s=0.2)
            contains(error, "send", "waiting for rank 1")
        other.barrier()

    world.run(program)


@every_kind
def test_connect_names_the_ranks_that_do_not_come(kind: Kind) -> None:
    def program() -> None:
        first = phalanx.connect(timeout_s=20)
        if first.rank != 2:
            error = raised(phalanx.OperationTimeoutError, phalanx.connect, timeout_s=0.3)
            contains(error, "connect: timed out after 0.3 s", "ranks [2] did not come")
        first.barrier()

    run_ranks(kind, 3, program)


def test_an_interrupted_rank_raises_its_own_exception_and_the_others_hear_of_it() -> None:
    """A signal handler that raises, as Ctrl-C does, in the middle of a wait."""

    def program() -> None:
        group, other = phalanx.connect(timeout_s=20), phalanx.connect(timeout_s=20)
        if group.rank == 0:

            def interrupt(*_: object) -> None:
                raise KeyboardInterrupt

            signal.signal(signal.SIGALRM, interrupt)
            signal.setitimer(signal.ITIMER_REAL, 0.1)
            raised(KeyboardInterrupt, group.barrier)
        elif group.rank == 1:
            error = raised(phalanx.AbortedError, group.barrier)
            contains(error, "rank 0 was interrupted")
            equal(error.culprits, (0,))
        other.barrier()

    run_ranks("process", 3, program)


def test_an_interrupted_receive_leaves_the_group_usable() -> None:
    def program() -> None:
        group = phalanx.connect(timeout_s=20)
        if group.rank == 0:

            def interrupt(*_: object) -> None:
                raise KeyboardInterrupt

            signal.signal(signal.SIGALRM, interrupt)
            signal.setitimer(signal.ITIMER_REAL, 0.1)
            raised(KeyboardInterrupt, group.recv, torch.ones(1), 1)
        group.barrier()

    run_ranks("process", 2, program)
