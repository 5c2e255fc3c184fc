"""A rank that does not come is named, with what it does instead."""

from __future__ import annotations

import re
import signal
from datetime import timedelta
from pathlib import Path

import pytest
import torch

import phalanx
from phalanx.groups.shared_memory import SharedMemoryGroup
from tests.checks import Stopwatch
from tests.worlds import worlds

_FOLDER = Path(__file__).parent.name


def _line_of(marker: str) -> int:
    with open(__file__) as lines:
        return next(number for number, line in enumerate(lines, 1) if line.rstrip().endswith(f"# {marker}"))


@pytest.mark.slow
@worlds(2, 3)
def test_a_timeout_names_the_missing_rank_and_where_it_is(group: SharedMemoryGroup) -> None:
    """The late rank left a barrier of this group and waits in another group, for those that wait here."""
    other = phalanx.connect()
    group.set_timeout(1)
    group.barrier(timeout_s=60)  # the last common call
    text = ""
    if group.rank != 1:
        watch = Stopwatch()
        with pytest.raises(phalanx.OperationTimeoutError) as caught:
            group.all_reduce(torch.ones(3))
        assert watch.seconds() > 0.99
        error, text = caught.value, str(caught.value)
        assert (error.culprits, error.operation, error.sequence) == ((1,), "all_reduce", 2)
        assert isinstance(error, TimeoutError)
        lines = text.splitlines()
        assert "rank 1 did not come" in lines[0]
        assert "timed out" in lines[0]
        missing = next(line for line in lines if line.startswith("  missing"))
        assert f"left barrier #1, {_FOLDER}/test_timeout.py:{_line_of('the last common call')}, begun" in missing
        assert f"here     rank {group.rank} of {group.size} called all_reduce sum float32 (3,)" in text
    other.barrier()
    # The first to time out sees the cycle. A later one may not: by then the late rank may wait for the first one.
    in_cycle = [text for text in other.all_gather_object(text) if "  cycle" in text]
    assert in_cycle
    for text in in_cycle:
        assert re.search(r"  cycle    rank \d waits for rank \d in ", text)
        assert re.search(r"rank [02] waits for rank 1 in all_reduce #2", text)
        assert "do       make these calls in the same order on every rank" in text


@worlds(2)
def test_a_rank_that_comes_too_late_hears_of_the_timeout(group: SharedMemoryGroup) -> None:
    other = phalanx.connect()
    if group.rank == 0:
        with pytest.raises(phalanx.OperationTimeoutError):
            group.barrier(timeout_s=0.05)
        other.barrier()
    else:
        other.barrier()
        with pytest.raises(phalanx.OperationTimeoutError) as caught:
            group.barrier()
        assert "rank 0 timed out" in str(caught.value)
        assert "rank 1" in str(caught.value)


@worlds(2)
def test_a_missing_rank_that_waits_for_a_message_is_described_so(group: SharedMemoryGroup) -> None:
    other = phalanx.connect()
    if group.rank == 0:
        other.barrier()
        with pytest.raises(phalanx.OperationTimeoutError) as caught:
            group.barrier(timeout_s=0.3)
        told = f"waits in recv from rank 0, {_FOLDER}/test_timeout.py:{_line_of('the wrong wait')}"
        assert told in str(caught.value)
    else:
        work = other.barrier(async_op=True)
        with pytest.raises(phalanx.OperationTimeoutError, match="recv"):
            group.recv(torch.ones(1), 0)  # the wrong wait
        work.wait()


@worlds(2)
def test_the_timeout_of_a_call_beats_that_of_the_group(group: SharedMemoryGroup) -> None:
    other = phalanx.connect()
    if group.rank == 0:
        watch = Stopwatch()
        with pytest.raises(phalanx.OperationTimeoutError, match="timed out after 1 ms"):
            group.barrier(timeout_s=timedelta(milliseconds=1))
        assert watch.seconds() < 20
    other.barrier()


@worlds(3, 4)
def test_all_missing_ranks_are_named(group: SharedMemoryGroup) -> None:
    group.set_timeout(0.1)
    other = phalanx.connect()
    if group.rank == 0:
        with pytest.raises(phalanx.OperationTimeoutError) as caught:
            group.all_reduce(torch.ones(100_000))
        assert caught.value.culprits == tuple(range(1, group.size))
        assert f"ranks 1-{group.size - 1} did not come" in str(caught.value)
        assert "has not called anything in this group yet" in str(caught.value)
    other.barrier()


@worlds(2)
def test_messages_that_do_not_come_time_out_and_leave_the_group_usable(group: SharedMemoryGroup) -> None:
    if group.rank == 0:
        with pytest.raises(phalanx.OperationTimeoutError) as caught:
            group.recv(torch.ones(1), 1, 5, timeout_s=0.05)
        assert "recv" in str(caught.value)
        assert "timed out after 50 ms, waiting for rank 1" in str(caught.value)
        assert (caught.value.culprits, caught.value.operation) == ((1,), "recv")
        with pytest.raises(phalanx.OperationTimeoutError) as caught:
            group.recv(torch.ones(1), timeout_s=0.05)
        assert "waiting for any rank" in str(caught.value)
        assert caught.value.culprits == ()
        work = group.recv(torch.ones(1), 1, 6, async_op=True, timeout_s=0.05)
        with pytest.raises(phalanx.OperationTimeoutError):
            work.wait()
    group.barrier()
    tensor = torch.zeros(1)
    if group.rank == 0:
        group.recv(tensor, 1)
        assert float(tensor) == 4.0
    else:
        group.send(torch.full((1,), 4.0), 0)


@worlds(2)
@pytest.mark.slow
def test_a_large_message_nobody_takes_times_out(group: SharedMemoryGroup) -> None:
    other = phalanx.connect()
    if group.rank == 0:
        with pytest.raises(phalanx.OperationTimeoutError) as caught:
            group.send(torch.ones(3_000_000), 1, timeout_s=0.2)
        assert "send" in str(caught.value)
        assert "waiting for rank 1" in str(caught.value)
    other.barrier()


@worlds(3)
def test_connect_names_the_ranks_that_do_not_come() -> None:
    first = phalanx.connect(timeout_s=20)
    if first.rank != 2:
        with pytest.raises(phalanx.OperationTimeoutError) as caught:
            phalanx.connect(timeout_s=0.3)
        assert "connect: timed out after 0.3 s" in str(caught.value)
        assert "rank 2 did not come" in str(caught.value)
    first.barrier()


def _interrupt_soon() -> None:
    """Have a signal handler raise, as Ctrl-C does."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.1)


@pytest.mark.ranks(3)
def test_an_interrupted_rank_raises_its_own_exception_and_the_others_hear_of_it(group: SharedMemoryGroup) -> None:
    """A signal handler that raises, as Ctrl-C does, in the middle of a wait."""
    other = phalanx.connect()
    if group.rank == 0:
        _interrupt_soon()
        with pytest.raises(KeyboardInterrupt):
            group.barrier()
    elif group.rank == 1:
        with pytest.raises(phalanx.AbortedError) as caught:
            group.barrier()
        assert "rank 0 was interrupted" in str(caught.value)
        assert caught.value.culprits == (0,)
    other.barrier()


@pytest.mark.ranks(2)
def test_an_interrupted_receive_leaves_the_group_usable(group: SharedMemoryGroup) -> None:
    if group.rank == 0:
        _interrupt_soon()
        with pytest.raises(KeyboardInterrupt):
            group.recv(torch.ones(1), 1)
    group.barrier()


@pytest.mark.ranks(2)
def test_closing_a_group_that_waits_for_a_peer_can_be_interrupted(group: SharedMemoryGroup) -> None:
    other = phalanx.connect()
    if group.rank == 0:
        group.barrier(async_op=True)
        _interrupt_soon()
        watch = Stopwatch()
        with pytest.raises(KeyboardInterrupt):
            group.close()
        assert watch.seconds() < 40
        assert group.is_closed
    other.barrier()
