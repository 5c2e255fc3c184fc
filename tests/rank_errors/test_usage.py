"""Bad input: a clear error before anything is sent, on the rank that erred; the others learn it at once."""

from __future__ import annotations

import functools
import operator
import os
import re
import resource
import signal
from collections.abc import Callable
from typing import Any

import pytest
import torch

import phalanx
from phalanx import ReduceOp
from phalanx.groups.shared_memory import SharedMemoryGroup
from tests.checks import Stopwatch, same
from tests.worlds import worlds

Call = Callable[[Any], Any]

VALID: dict[str, Call] = {
    "all_reduce": lambda g: g.all_reduce(torch.ones(2)),
    "reduce": lambda g: g.reduce(torch.ones(2)),
    "broadcast": lambda g: g.broadcast(torch.ones(2)),
    "all_gather": lambda g: g.all_gather([torch.ones(2), torch.ones(2)], torch.ones(2)),
    "gather": lambda g: g.gather([torch.ones(2), torch.ones(2)] if g.rank == 0 else None, torch.ones(2)),
    "scatter": lambda g: g.scatter(torch.ones(2), [torch.ones(2), torch.ones(2)] if g.rank == 0 else None),
    "reduce_scatter": lambda g: g.reduce_scatter(torch.ones(2), [torch.ones(2), torch.ones(2)]),
    "all_to_all": lambda g: g.all_to_all_single(torch.ones(2), torch.ones(2)),
    "barrier": lambda g: g.barrier(),
}

INT4 = vars(torch)["int4"]  # torch's stubs have none

# operation, what is called on two ranks, what the error must say
BAD: list[tuple[str, Call, str]] = [
    ("all_reduce", lambda g: g.all_reduce(5), "tensor must be a torch tensor, not int"),
    ("all_reduce", lambda g: g.all_reduce([1.0]), "tensor must be a torch tensor, not list"),
    ("all_reduce", lambda g: g.all_reduce(None), "not NoneType"),
    ("all_reduce", lambda g: g.all_reduce(torch.ones(2, device="meta")), "meta"),
    ("all_reduce", lambda g: g.all_reduce(torch.ones(2).to_sparse()), "layout torch.sparse_coo"),
    (
        "all_reduce",
        lambda g: g.all_reduce(torch.zeros(2, dtype=torch.uint8).view(torch.float4_e2m1fn_x2)),
        "does not support sum on float4_e2m1fn_x2",
    ),
    (
        "all_reduce",
        lambda g: g.all_reduce(torch.zeros(2).to(torch.float8_e8m0fnu)),
        "does not support sum on float8_e8m0fnu",
    ),
    (
        "all_reduce",
        lambda g: g.all_reduce(torch.zeros(2, dtype=torch.uint8).view(INT4)),
        "does not support sum on 8-bit",
    ),
    (
        "all_reduce",
        lambda g: g.all_reduce(torch.ones(2, dtype=torch.int64), ReduceOp.AVG),
        "does not support avg on int64",
    ),
    ("all_reduce", lambda g: g.all_reduce(torch.ones(2), ReduceOp.BAND), "all_reduce does not support band on float32"),
    (
        "all_reduce",
        lambda g: g.all_reduce(torch.ones(2, dtype=torch.int32), ReduceOp.premul_sum(2)),
        "premul_sum on int32",
    ),
    (
        "all_reduce",
        lambda g: g.all_reduce_coalesced([torch.ones(1), 3]),
        "tensors must be a torch tensor, not int",
    ),
    ("all_reduce", lambda g: g.all_reduce_coalesced(torch.ones(1)), "tensors must be a list of tensors, not Tensor"),
    ("all_reduce", lambda g: g.all_reduce_coalesced([]), "the list of tensors is empty"),
    (
        "all_reduce",
        lambda g: g.all_reduce_coalesced([torch.ones(1), torch.ones(1) * 1j], ReduceOp.MAX),
        "all_reduce does not support max on complex64",
    ),
    ("reduce", lambda g: g.reduce(torch.ones(2), 2), "rank 2 is outside this group of 2 ranks; give 0 to 1"),
    ("reduce", lambda g: g.reduce(torch.ones(2) * 1j, 0, ReduceOp.MIN), "reduce does not support min on complex64"),
    ("broadcast", lambda g: g.broadcast(torch.ones(2), -1), "rank -1 is outside this group of 2 ranks"),
    ("broadcast", lambda g: g.broadcast("text"), "tensor must be a torch tensor, not str"),
    (
        "all_gather",
        lambda g: g.all_gather([torch.ones(2)], torch.ones(2)),
        "outputs has 1 tensors, but the group has 2 ranks",
    ),
    (
        "all_gather",
        lambda g: g.all_gather([torch.ones(2), torch.ones(2)], torch.ones(2).int()),
        "have different dtypes: float32 and int32",
    ),
    (
        "all_gather",
        lambda g: g.all_gather([torch.ones(2), torch.ones(2)], torch.ones(3)),
        "has 2 elements, but this rank's input has 3",
    ),
    (
        "all_gather",
        lambda g: g.all_gather_single(torch.ones(5), torch.ones(2)),
        "output has 5 elements; 2 ranks give 4",
    ),
    ("all_gather", lambda g: g.all_gather_single(torch.ones(4).int(), torch.ones(2)), "have different dtypes"),
    ("gather", lambda g: g.gather(None, torch.ones(2), g.rank), "outputs must be specified on the destination rank"),
    (
        "gather",
        lambda g: g.gather([torch.ones(2)] * 2, torch.ones(2), 1 - g.rank),
        "must NOT be specified on non-destination ranks",
    ),
    ("gather", lambda g: g.gather([torch.ones(2), torch.ones(3)], torch.ones(2), g.rank), "must each have 2 elements"),
    ("gather", lambda g: g.gather(None, torch.ones(2), 9), "rank 9 is outside"),
    ("scatter", lambda g: g.scatter(torch.ones(2), None, g.rank), "inputs must be specified on the source rank"),
    (
        "scatter",
        lambda g: g.scatter(torch.ones(2), [torch.ones(2)] * 2, 1 - g.rank),
        "must NOT be specified on non-source ranks",
    ),
    (
        "scatter",
        lambda g: g.scatter(torch.ones(2), [torch.ones(2), torch.ones(1)], g.rank),
        "must each have 2 elements",
    ),
    ("scatter", lambda g: g.scatter(torch.ones(2), [torch.ones(2)] * 3, g.rank), "inputs has 3 tensors"),
    ("reduce_scatter", lambda g: g.reduce_scatter(torch.ones(2), [torch.ones(2)]), "inputs has 1 tensors"),
    (
        "reduce_scatter",
        lambda g: g.reduce_scatter(torch.ones(3), [torch.ones(2)] * 2),
        "has 2 elements, but this rank's output has 3",
    ),
    (
        "reduce_scatter",
        lambda g: g.reduce_scatter_single(torch.ones(2), torch.ones(5)),
        "input has 5 elements; 2 ranks need 4",
    ),
    (
        "reduce_scatter",
        lambda g: g.reduce_scatter_single(torch.ones(1) * 1j, torch.ones(2) * 1j, ReduceOp.PRODUCT),
        "reduce_scatter does not support product",
    ),
    ("all_to_all", lambda g: g.all_to_all([torch.ones(1)] * 2, [torch.ones(1)] * 3), "inputs has 3 tensors"),
    (
        "all_to_all",
        lambda g: g.all_to_all_single(torch.ones(3), torch.ones(3)),
        "output has 3 rows, which 2 ranks can't share equally",
    ),
    (
        "all_to_all",
        lambda g: g.all_to_all_single(torch.ones(3), torch.ones(3), [1, 1], [1, 2]),
        "Split sizes doesn't match total dim 0 size",
    ),
    (
        "all_to_all",
        lambda g: g.all_to_all_single(torch.ones(3), torch.ones(3), [1, 2], [3]),
        "input has 1 split sizes for 2 ranks",
    ),
    (
        "all_to_all",
        lambda g: g.all_to_all_single(torch.ones(3), torch.ones(3), [1, 2], [4, -1]),
        "split sizes must not be negative",
    ),
    ("all_to_all", lambda g: g.all_to_all_single(torch.ones(2).int(), torch.ones(2)), "have different dtypes"),
]

MESSAGES: list[tuple[str, Call, str]] = [
    ("send", lambda g: g.send(torch.ones(2), 2), "rank 2 is outside this group of 2 ranks"),
    ("send", lambda g: g.send(torch.ones(2), -1), "rank -1 is outside"),
    ("send", lambda g: g.send(torch.ones(2), 1 - g.rank, -1), "tag -1 is negative"),
    ("send", lambda g: g.send(7, 1 - g.rank), "tensor must be a torch tensor, not int"),
    ("recv", lambda g: g.recv(torch.ones(2), 5), "rank 5 is outside"),
    ("recv", lambda g: g.recv(torch.ones(2), 1 - g.rank, -3), "tag -3 is negative"),
    ("recv", lambda g: g.recv(torch.ones(1).expand(2), 1 - g.rank), "expanded view"),
]


def _id(case: tuple[str, Call, str]) -> str:
    return f"{case[0]}-{case[2]}".replace(" ", "-").replace(";", "").replace(",", "").replace("'", "")[:60]


@worlds(2)
@pytest.mark.many_cases
@pytest.mark.parametrize("case", [*BAD, *MESSAGES], ids=_id)
def test_bad_input_is_refused_on_the_rank_that_erred(group: SharedMemoryGroup, case: tuple[str, Call, str]) -> None:
    operation, call, text = case
    with pytest.raises(phalanx.UsageError) as caught:
        call(group)
    error, first_line = caught.value, str(caught.value).splitlines()[0]
    assert text in first_line
    assert operation in first_line
    assert 'group "world"' in first_line
    assert isinstance(error, ValueError)
    assert (error.group, error.rank, error.num_ranks, error.operation) == ("world", group.rank, 2, operation)
    tensor = torch.ones(2)
    group.all_reduce(tensor)
    same(tensor, torch.full((2,), 2.0), "and the group still works")


@worlds(2)
@pytest.mark.many_cases
@pytest.mark.parametrize("case", BAD, ids=_id)
def test_if_one_rank_erred_the_other_learns_it_at_once(group: SharedMemoryGroup, case: tuple[str, Call, str]) -> None:
    """In a rooted operation the one that others wait for errs: they need nothing from anybody else."""
    operation, call, text = case
    culprit = 0 if operation in ("broadcast", "scatter") else 1
    watch = Stopwatch()
    if group.rank == culprit:
        with pytest.raises(phalanx.UsageError, match=re.escape(text)):
            call(group)
    else:
        with pytest.raises(phalanx.PeerFailedError) as caught:
            VALID[operation](group)
        assert f"rank {culprit}" in str(caught.value)
        assert "had its arguments refused" in str(caught.value)
        assert text in str(caught.value)
        assert f"correct the call on rank {culprit}" in str(caught.value)
        assert (caught.value.culprits, caught.value.operation, caught.value.rank) == ((culprit,), operation, group.rank)
    assert watch.seconds() < 20
    group.barrier()


@worlds(3, 4)
@pytest.mark.parametrize("count", [2, 300_000])
def test_if_one_of_many_erred_all_others_learn_it_at_once(group: SharedMemoryGroup, count: int) -> None:
    watch = Stopwatch()
    if group.rank == 1:
        with pytest.raises(phalanx.UsageError):
            group.all_reduce(5)  # type: ignore[call-overload]
    else:
        with pytest.raises(phalanx.PeerFailedError) as caught:
            group.all_reduce(torch.ones(count))
        assert caught.value.culprits == (1,)
    assert watch.seconds() < 20
    tensor = torch.ones(count)
    group.all_reduce(tensor)
    same(tensor, torch.full((count,), float(group.size)), "and the group still works")


@worlds(2)
def test_an_asynchronous_call_is_refused_at_once_and_fails_the_peer_s_work(group: SharedMemoryGroup) -> None:
    if group.rank == 1:
        with pytest.raises(phalanx.UsageError):
            group.all_reduce("no tensor", async_op=True)  # type: ignore[call-overload]
    else:
        work: Any = group.all_reduce(torch.ones(2), async_op=True)
        with pytest.raises(phalanx.PeerFailedError) as caught:
            work.wait()
        assert caught.value.culprits == (1,)
        assert isinstance(work.exception(), phalanx.PeerFailedError)
    group.barrier()


@worlds(2)
@pytest.mark.parametrize(
    "operation", [ReduceOp.MAX, ReduceOp.MIN, ReduceOp.PRODUCT, ReduceOp.BAND, ReduceOp.BOR, ReduceOp.BXOR]
)
def test_complex_numbers_have_no_order_and_no_bits(group: SharedMemoryGroup, operation: ReduceOp) -> None:
    for dtype in (torch.complex64, torch.complex128):
        told = f"all_reduce does not support {operation.name.lower()} on {str(dtype).split('.')[1]}"
        with pytest.raises(phalanx.UsageError, match=told):
            group.all_reduce(torch.ones(2, dtype=dtype), operation)


@worlds(1)
def test_arguments_of_the_wrong_kind_are_type_errors(group: Any) -> None:
    with pytest.raises(TypeError, match=r"all_reduce\(\) missing required argument 'tensor'"):
        group.all_reduce()
    with pytest.raises(TypeError, match="unexpected keyword argument 'bad'"):
        group.all_reduce(torch.ones(1), bad=1)
    with pytest.raises(TypeError, match="at most 2 positional arguments"):
        group.all_reduce(torch.ones(1), 0, 0, 0)
    with pytest.raises(TypeError, match="multiple values for argument 'tensor'"):
        group.all_reduce(torch.ones(1), tensor=1)
    with pytest.raises(TypeError, match="'root' must be a whole number"):
        group.broadcast(torch.ones(1), "zero")
    with pytest.raises(TypeError, match="must not be negative"):
        group.barrier(timeout_s=-1)
    with pytest.raises(TypeError, match="'timeout_s' must be a number of seconds or a timedelta, not str"):
        group.barrier(timeout_s="soon")
    with pytest.raises(TypeError, match="'timeout_s' must be a number of seconds or a timedelta, not str"):
        group.barrier(async_op=True).wait("soon")


@pytest.mark.ranks(1)  # a signal ends the rank only
def test_a_keyword_that_is_no_proper_text_is_not_known(group: Any) -> None:
    for keyword, shown in {"\ud800": r"\\ud800", "op\0": r"op\\x00"}.items():
        with pytest.raises(TypeError, match=f"got an unexpected keyword argument '{shown}'"):
            group.all_reduce(torch.ones(1), **{keyword: 1})


@worlds(2)
def test_what_is_neither_true_nor_false_is_refused_before_the_operation_runs(group: Any) -> None:
    for operation, call in VALID.items():
        told = r"argument 'async_op' must be True or False, not Tensor"
        with pytest.raises(TypeError, match=told) as caught:
            call(Partial(group, async_op=torch.ones(2)))
        assert "ambiguous" in str(caught.value.__cause__), operation
    assert group.records(group.rank).operations == []


class Partial:
    """A group whose operations all get one more argument."""

    def __init__(self, group: Any, **arguments: Any) -> None:
        self.rank, self._group, self._arguments = group.rank, group, arguments

    def __getattr__(self, name: str) -> Any:
        return functools.partial(getattr(self._group, name), **self._arguments)


@pytest.mark.ranks(1)  # a signal ends the rank only
def test_a_group_made_by_hand_has_no_operations() -> None:
    made: Any = SharedMemoryGroup.__new__(SharedMemoryGroup)
    calls: dict[str, Call] = {
        **VALID,
        "send": lambda g: g.send(torch.ones(1), 0),
        "recv": lambda g: g.recv(torch.ones(1), 0),
    }
    for name in ("all_reduce_coalesced", "all_gather_single", "reduce_scatter_single", "all_to_all"):
        calls[name] = operator.methodcaller(name)
    for call in calls.values():
        with pytest.raises(TypeError, match=r"this group was made by hand; phalanx.connect\(\) returns one"):
            call(_Ranked(made))


class _Ranked:
    """A group with a rank, whatever its own would say."""

    rank = 0

    def __init__(self, group: Any) -> None:
        self._group = group

    def __getattr__(self, name: str) -> Any:
        return getattr(self._group, name)


@worlds(2)
def test_a_factor_that_is_no_number_is_refused(group: SharedMemoryGroup) -> None:
    for factor in ("two", None, torch.ones(2), 10**400):
        with pytest.raises(phalanx.UsageError, match="the factor of premul_sum must be one number, not "):
            ReduceOp.premul_sum(factor)  # type: ignore[arg-type]
    tensor = torch.ones(2)
    group.all_reduce(tensor, ReduceOp.premul_sum(torch.tensor(2)))  # type: ignore[arg-type]
    same(tensor, torch.full((2,), 4.0))


@pytest.mark.ranks(2)
def test_peers_learn_at_once_that_a_rank_has_no_memory_for_its_arguments(group: SharedMemoryGroup) -> None:
    watch = Stopwatch()
    if group.rank == 1:
        tensors = [torch.ones(1)] * 10_000_000
        with open("/proc/self/statm") as numbers:
            used = int(numbers.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + (100 << 20), resource.RLIM_INFINITY))
        with pytest.raises(MemoryError, match="there is not enough memory for this operation"):
            group.all_reduce_coalesced(tensors)
        resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    else:
        with pytest.raises(phalanx.PeerFailedError, match="there is not enough memory for this operation") as caught:
            group.all_reduce(torch.ones(2))
        assert caught.value.culprits == (1,)
    assert watch.seconds() < 20
    group.barrier()


@worlds(1)
def test_numbers_too_large_for_a_rank_or_tag_are_refused(group: SharedMemoryGroup) -> None:
    """Cut to 32 bits they would be rank 0 and tag 1."""
    with pytest.raises(TypeError, match="'root' is out of range"):
        group.broadcast(torch.ones(1), 2**32)
    sent = group.send(torch.ones(1), 0, 2**32 + 1, async_op=True)  # tags have 64 bits
    with pytest.raises(phalanx.OperationTimeoutError):
        group.recv(torch.zeros(1), 0, 1, async_op=True).wait(0.05)
    group.recv(torch.zeros(1), 0, 2**32 + 1, async_op=True).wait()
    sent.wait()


@worlds(2)
def test_split_sizes_that_are_no_numbers_are_refused(group: SharedMemoryGroup) -> None:
    with pytest.raises(phalanx.UsageError, match="split sizes must be whole numbers"):
        group.all_to_all_single(torch.ones(2), torch.ones(2), ["a", "b"], [1, 1])  # type: ignore[list-item]


@worlds(2)
def test_a_closed_group_refuses_everything(group: SharedMemoryGroup) -> None:
    group.barrier()
    group.close()
    assert group.is_closed
    assert "closed" in repr(group)
    group.close()
    for operation, call in VALID.items():
        with pytest.raises(phalanx.ClosedError) as caught:
            call(group)
        assert f'{operation} of group "world": the group is closed' in str(caught.value)
        assert "phalanx.connect()" in str(caught.value)
        assert (caught.value.operation, caught.value.group, caught.value.rank) == (operation, "world", group.rank)
    with pytest.raises(phalanx.ClosedError):
        group.send(torch.ones(1), 0)
    with pytest.raises(phalanx.ClosedError):
        group.recv(torch.ones(1), 0)
    with pytest.raises(phalanx.ClosedError):
        group.all_gather_object(1)
    with pytest.raises(phalanx.ClosedError):
        group.split([0, 1], timeout_s=1)
    with pytest.raises(phalanx.ClosedError):
        group.empty(3, timeout_s=1)


@pytest.mark.ranks(2)
def test_a_child_made_by_fork_is_not_the_rank(group: SharedMemoryGroup) -> None:
    group.barrier()
    pid = os.fork()
    if pid == 0:
        try:
            with pytest.raises(phalanx.ClosedError, match="this process was forked from the rank") as caught:
                group.all_reduce(torch.ones(1))
            assert "child processes make their own" in str(caught.value)
            os._exit(7)
        finally:
            os._exit(1)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 7
    tensor = torch.ones(1)
    group.all_reduce(tensor)
    same(tensor, torch.full((1,), 2.0), "the rank itself goes on")


@pytest.mark.ranks(2)
def test_a_child_that_ends_in_good_order_does_not_close_the_parent_s_group() -> None:
    group = phalanx.connect()  # not the fixture, which would keep it
    tensor = torch.ones(200_000)
    group.all_reduce(tensor, async_op=True).wait()  # the group has a thread of its own now
    pid = os.fork()
    if pid == 0:
        signal.alarm(3)  # a child that hangs ends by this signal
        del group
        os._exit(0)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    group.all_reduce(tensor, async_op=True).wait()
    same(tensor, torch.full((200_000,), 4.0))
