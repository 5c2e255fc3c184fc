"""Trouble on purpose: it strikes the rank and the operation that were named, and no other."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch

import phalanx
from phalanx.errors import UsageError
from phalanx.testing import assert_same_on_ranks, faults
from tests.testing.inner_runs import InnerRuns

_KINDS = ["process", "thread"]
_PLACES: dict[str, tuple[faults.At, int]] = {
    "number": (3, 3),
    "name": ("barrier", 2),
    "name and number": (("all_reduce", 2), 3),
}


def _operations(group: Any) -> list[Any]:
    """Five operations to count: all_reduce, barrier, all_reduce, broadcast, barrier."""
    return [
        lambda: group.all_reduce(torch.ones(2)),
        group.barrier,
        lambda: group.all_reduce(torch.ones(2)),
        lambda: group.broadcast(torch.ones(2), root=0),
        group.barrier,
    ]


def _num_before_trouble(group: Any, error: type[BaseException]) -> int:
    for number, operation in enumerate(_operations(group)):
        try:
            operation()
        except error:
            return number
    return 5


@pytest.mark.ranks(3, kind=_KINDS)
@pytest.mark.parametrize("place", _PLACES)
def test_kill_ends_a_rank_right_before_an_operation(group: Any, rank: int, place: str) -> None:
    at, operation = _PLACES[place]
    faults.kill(rank=1, at=at)
    assert _num_before_trouble(group, phalanx.PeerDiedError) == operation - 1
    assert rank != 1, "rank 1 should be dead"
    assert group.shrink().size == 2


@pytest.mark.ranks(2)
@pytest.mark.parametrize("number", [9, 15, 6])
def test_kill_sends_the_signal_it_was_given(group: Any, rank: int, number: int) -> None:
    faults.kill(rank=1, at=1, signal_number=number)
    with pytest.raises(phalanx.PeerDiedError, match=f"signal {number}"):
        group.barrier()


@pytest.mark.slow
@pytest.mark.ranks(3, kind=_KINDS)
@pytest.mark.parametrize("place", _PLACES)
def test_stall_holds_a_rank_for_good_but_not_the_test(group: Any, rank: int, place: str) -> None:
    at, operation = _PLACES[place]
    faults.stall(rank=1, at=at)
    group.set_timeout(0.4)
    assert _num_before_trouble(group, phalanx.OperationTimeoutError) == operation - 1
    assert rank != 1, "rank 1 should hang"


@pytest.mark.ranks(2, kind=_KINDS)
@pytest.mark.parametrize("fault", [faults.stall, faults.delay])
def test_a_rank_can_be_late_for_an_operation(group: Any, rank: int, fault: Any) -> None:
    fault(rank=1, at=2, seconds=0.1)
    start = time.monotonic()
    group.barrier()
    if rank == 1:  # the other may return from the first barrier late
        start = time.monotonic()
    group.barrier()
    assert time.monotonic() - start >= 0.09
    group.barrier()


@pytest.mark.ranks(2, kind=_KINDS)
@pytest.mark.parametrize("place", _PLACES)
def test_raise_replaces_an_operation_by_an_exception(group: Any, rank: int, place: str) -> None:
    at, operation = _PLACES[place]
    faults.raise_(OSError("network down"), rank=1, at=at)
    before = _operations(group)[: operation - 1]
    for step in before:
        step()
    if rank == 1:
        with pytest.raises(OSError, match="network down"):
            _operations(group)[operation - 1]()


@pytest.mark.ranks(2, kind=_KINDS)
def test_raise_takes_a_class_as_well(group: Any, rank: int) -> None:
    faults.raise_(KeyError, rank=0, at="broadcast")
    if rank == 0:
        with pytest.raises(KeyError):
            group.broadcast(torch.ones(1), root=0)


@pytest.mark.ranks(2, kind=_KINDS)
def test_corrupt_flips_a_bit_of_what_a_rank_gives(group: Any, rank: int) -> None:
    faults.corrupt(rank=1, at=("all_reduce", 2), bit=31)
    first, second, third = (torch.ones(2) for _ in range(3))
    for total in (first, second, third):
        group.all_reduce(total)
    assert (first.tolist(), second.tolist(), third.tolist()) == ([2, 2], [0, 2], [2, 2])
    assert_same_on_ranks(second)


@pytest.mark.ranks(2, kind=_KINDS)
def test_faults_add_up(group: Any, rank: int) -> None:
    faults.corrupt(rank=0, at=1, bit=31)
    faults.raise_(OSError("second"), rank=0, at=2)
    total = torch.ones(1)
    group.all_reduce(total)
    assert total.item() == 0
    if rank == 0:
        with pytest.raises(OSError, match="second"):
            group.barrier()


@pytest.mark.ranks(2)
def test_operations_of_torch_distributed_count(process_group: Any, rank: int) -> None:
    import torch.distributed as dist

    faults.kill(rank=1, at=("all_reduce", 2))
    dist.all_reduce(torch.ones(1))
    with pytest.raises(RuntimeError, match="rank 1"):
        dist.all_reduce(torch.ones(1))
    assert rank == 0


@pytest.mark.ranks(2, kind=_KINDS)
def test_a_group_made_later_has_the_fault_too(rank: int) -> None:
    faults.raise_(OSError("late"), rank=1, at=1)
    group = phalanx.connect()
    if rank == 1:
        with pytest.raises(OSError, match="late"):
            group.barrier()
    group.close()


_BAD: dict[str, tuple[Any, str]] = {
    "rank": (lambda: faults.kill(rank=5, at=1), "rank 5 is outside this world of 2; give 0 to 1"),
    "rank text": (lambda: faults.kill(rank="one", at=1), "rank 'one' is outside this world"),  # type: ignore[arg-type]
    "operation": (
        lambda: faults.stall(rank=0, at="reduce_all"),
        "there is no operation 'reduce_all'; give one of all_",
    ),
    "zero": (lambda: faults.kill(rank=0, at=0), "at=0 is no operation; give a number from 1 on"),
    "zeroth": (lambda: faults.kill(rank=0, at=("barrier", 0)), "is no operation; give a number from 1 on"),
    "triple": (lambda: faults.kill(rank=0, at=("barrier", 1, 2)), "faults: "),  # type: ignore[arg-type]
    "True": (lambda: faults.kill(rank=0, at=True), "at=True is no operation"),
    "seconds": (lambda: faults.delay(rank=0, at=1, seconds=-1), "-1 seconds are not possible; give a positive"),
    "bit": (lambda: faults.corrupt(rank=0, at=1, bit=-1), "bit is -1; count from 0"),
    "error": (lambda: faults.raise_("no", rank=0, at=1), "give an exception, not 'no'"),  # type: ignore[arg-type]
}


@pytest.mark.ranks(2, kind="thread")
@pytest.mark.parametrize("case", _BAD)
def test_bad_arguments_of_faults_are_refused(rank: int, case: str) -> None:
    call, told = _BAD[case]
    with pytest.raises(UsageError) as caught:
        call()
    assert told in str(caught.value)


def test_faults_outside_ranks_are_refused() -> None:
    with pytest.raises(UsageError, match="faults work only on ranks: call them inside a test marked"):
        faults.kill(rank=0, at=1)


@pytest.mark.slow
def test_a_fault_is_no_failure_but_what_the_others_do_is(inner: InnerRuns, kind: str) -> None:
    result = inner.run(
        """
        from phalanx.testing import faults

        @pytest.mark.ranks(3, timeout=20)
        def test_not_ready_for_it(group, rank):
            faults.kill(rank=1, at=2)
            group.barrier()
            group.barrier()

        @pytest.mark.ranks(3)
        def test_after(group):
            for _ in range(5): group.barrier()
        """,
        f"--ranks-kind={kind}",
    )
    result.assert_outcomes(failed=1, passed=1)
    result.stdout.fnmatch_lines(["ranks 0, 2 of 3: *PeerDiedError*rank 1*"])


def test_corrupting_an_operation_without_a_tensor_is_refused(inner: InnerRuns) -> None:
    result = inner.run(
        """
        from phalanx.testing import faults

        @pytest.mark.ranks(2)
        def test_barrier(group, rank):
            faults.corrupt(rank=1, at=1)
            group.barrier()
        """
    )
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["rank 1 of 2: *UsageError: faults.corrupt: barrier has no input tensor to corrupt*"])
