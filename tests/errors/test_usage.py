"""Bad input: a clear error before anything is sent, on the rank that erred; the others learn it at once."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch

import phalanx
from phalanx import ReduceOp
from tests.checks import Stopwatch, check, contains, equal, raised, same
from tests.run_ranks import Kind, World, every_kind, run_ranks, worlds

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

# operation, what is called on two ranks, what the error must say
BAD: list[tuple[str, Call, str]] = [
    ("all_reduce", lambda g: g.all_reduce(5), "tensor must be a torch tensor on the CPU, not int"),
    ("all_reduce", lambda g: g.all_reduce([1.0]), "tensor must be a torch tensor on the CPU, not list"),
    ("all_reduce", lambda g: g.all_reduce(None), "not NoneType"),
    ("all_reduce", lambda g: g.all_reduce(torch.ones(2, device="meta")), "meta"),
    ("all_reduce", lambda g: g.all_reduce(torch.ones(2).to_sparse()), "tensor can't be used"),
    ("all_reduce", lambda g: g.all_reduce(torch.zeros(2).to(torch.float8_e5m2)), "does not support sum on 8-bit"),
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
        "tensors must be a torch tensor on the CPU, not int",
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
    ("broadcast", lambda g: g.broadcast("text"), "tensor must be a torch tensor on the CPU, not str"),
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
    ("send", lambda g: g.send(7, 1 - g.rank), "tensor must be a torch tensor on the CPU, not int"),
    ("recv", lambda g: g.recv(torch.ones(2), 5), "rank 5 is outside"),
    ("recv", lambda g: g.recv(torch.ones(2), 1 - g.rank, -3), "tag -3 is negative"),
    ("recv", lambda g: g.recv(torch.ones(1).expand(2), 1 - g.rank), "expanded view"),
]


def _id(case: tuple[str, Call, str]) -> str:
    return f"{case[0]}-{case[2]}".replace(" ", "-").replace(";", "").replace(",", "").replace("'", "")[:60]


@worlds(2, fast=["thread"])
@pytest.mark.parametrize("case", [*BAD, *MESSAGES], ids=_id)
def test_bad_input_is_refused_on_the_rank_that_erred(world: World, case: tuple[str, Call, str]) -> None:
    def program(operation: str, call: Call, text: str) -> None:
        group = phalanx.connect(timeout_s=20)
        error = raised(phalanx.UsageError, call, group)
        contains(error, text, operation)
        check(text in str(error).splitlines()[0] and 'group "world"' in str(error).splitlines()[0], error)
        check(isinstance(error, ValueError))
        equal((error.group, error.rank, error.num_ranks, error.operation), ("world", group.rank, 2, operation))
        tensor = torch.ones(2)
        group.all_reduce(tensor)
        same(tensor, torch.full((2,), 2.0), "and the group still works")

    world.run(program, *case)


@worlds(2, fast=["thread"])
@pytest.mark.parametrize("case", BAD, ids=_id)
def test_if_one_rank_erred_the_other_learns_it_at_once(world: World, case: tuple[str, Call, str]) -> None:
    """In a rooted operation the one that others wait for errs: they need nothing from anybody else."""

    def program(operation: str, call: Call, text: str) -> None:
        group = phalanx.connect(timeout_s=30)
        culprit = 0 if operation in ("broadcast", "scatter") else 1
        watch = Stopwatch()
        if group.rank == culprit:
            contains(raised(phalanx.UsageError, call, group), text)
        else:
            error = raised(phalanx.PeerFailedError, VALID[operation], group)
            contains(error, f"rank {culprit}", "had its arguments refused", text, f"mend the call on rank {culprit}")
            equal((error.culprits, error.operation, error.rank), ((culprit,), operation, group.rank))
        check(watch.seconds() < 2, watch.seconds())
        group.barrier()

    world.run(program, *case)


@worlds(3, 4)
@pytest.mark.parametrize("count", [2, 300_000])
def test_if_one_of_many_erred_all_others_learn_it_at_once(world: World, count: int) -> None:
    def program() -> None:
        group = phalanx.connect(timeout_s=30)
        watch = Stopwatch()
        if group.rank == 1:
            raised(phalanx.UsageError, group.all_reduce, 5)
        else:
            error = raised(phalanx.PeerFailedError, group.all_reduce, torch.ones(count))
            equal(error.culprits, (1,))
        check(watch.seconds() < 2, watch.seconds())
        tensor = torch.ones(count)
        group.all_reduce(tensor)
        same(tensor, torch.full((count,), float(group.size)), "and the group still works")

    world.run(program)


@worlds(2)
def test_an_asynchronous_call_is_refused_at_once_and_fails_the_peer_s_work(world: World) -> None:
    def program() -> None:
        group = phalanx.connect(timeout_s=30)
        if group.rank == 1:
            raised(phalanx.UsageError, group.all_reduce, "no tensor", async_op=True)
        else:
            work: Any = group.all_reduce(torch.ones(2), async_op=True)
            equal(raised(phalanx.PeerFailedError, work.wait).culprits, (1,))
            check(isinstance(work.exception(), phalanx.PeerFailedError))
        group.barrier()

    world.run(program)


@worlds(2)
@pytest.mark.parametrize(
    "operation", [ReduceOp.MAX, ReduceOp.MIN, ReduceOp.PRODUCT, ReduceOp.BAND, ReduceOp.BOR, ReduceOp.BXOR]
)
def test_complex_numbers_have_no_order_and_no_bits(world: World, operation: ReduceOp) -> None:
    def program() -> None:
        group = phalanx.connect()
        for dtype in (torch.complex64, torch.complex128):
            error = raised(phalanx.UsageError, group.all_reduce, torch.ones(2, dtype=dtype), operation)
            contains(error, f"all_reduce does not support {operation.name.lower()} on {str(dtype).split('.')[1]}")

    world.run(program)


@every_kind
def test_arguments_of_the_wrong_kind_are_type_errors(kind: Kind) -> None:
    def program() -> None:
        group: Any = phalanx.connect()
        contains(raised(TypeError, group.all_reduce), "all_reduce() missing required argument 'tensor'")
        contains(raised(TypeError, group.all_reduce, torch.ones(1), bad=1), "unexpected keyword argument 'bad'")
        contains(raised(TypeError, group.all_reduce, torch.ones(1), 0, 0, 0), "at most 2 positional arguments")
        contains(raised(TypeError, group.all_reduce, torch.ones(1), tensor=1), "multiple values for argument 'tensor'")
        contains(raised(TypeError, group.all_reduce, torch.ones(1), "sum"), "must be a ReduceOp")
        contains(raised(TypeError, group.all_reduce, torch.ones(1), 99), "must be a ReduceOp")
        contains(raised(TypeError, group.broadcast, torch.ones(1), "zero"), "'root' must be a whole number")
        contains(raised(TypeError, group.barrier, timeout_s=-1), "must not be negative")

    run_ranks(kind, 1, program)


@every_kind
def test_numbers_too_large_for_a_rank_or_tag_are_refused(kind: Kind) -> None:
    """Cut to 32 bits they would be rank 0 and tag 1."""

    def program() -> None:
        group: Any = phalanx.connect(timeout_s=2)
        for call in (
            partial(group.broadcast, torch.ones(1), 2**32),
            partial(group.send, torch.ones(1), 0, 2**32 + 1, async_op=True),
        ):
            try:
                result = call()
            except (phalanx.UsageError, TypeError, OverflowError):
                continue
            if result is None:
                raise AssertionError("root 2**32 was taken for rank 0")
            receive = group.recv(torch.zeros(1), 0, 1, async_op=True)
            raised(phalanx.OperationTimeoutError, receive.wait, 0.05)

    run_ranks(kind, 1, program)


@every_kind
def test_split_sizes_that_are_no_numbers_are_refused(kind: Kind) -> None:
    def program() -> None:
        group: Any = phalanx.connect(timeout_s=5)
        try:
            group.all_to_all_single(torch.ones(2), torch.ones(2), ["a", "b"], [1, 1])
        except (phalanx.UsageError, TypeError) as error:
            contains(error, "split")
        else:
            raise AssertionError("nothing was raised")

    run_ranks(kind, 2, program)


@every_kind
def test_a_closed_group_refuses_everything(kind: Kind) -> None:
    def program() -> None:
        group = phalanx.connect()
        group.barrier()
        group.close()
        check(group.is_closed)
        contains(repr(group), "closed")
        group.close()
        for operation, call in VALID.items():
            error = raised(phalanx.ClosedError, call, group)
            contains(error, f'{operation} of group "world": the group is closed', "phalanx.connect()")
            equal((error.operation, error.group, error.rank), (operation, "world", group.rank))
        raised(phalanx.ClosedError, group.send, torch.ones(1), 0)
        raised(phalanx.ClosedError, group.recv, torch.ones(1), 0)
        raised(phalanx.ClosedError, group.all_gather_object, 1)
        raised(phalanx.ClosedError, group.split, [0, 1], timeout_s=1)
        raised(phalanx.ClosedError, group.empty, 3, timeout_s=1)

    run_ranks(kind, 2, program)


def test_a_child_made_by_fork_is_not_the_rank() -> None:
    def program() -> int:
        group = phalanx.connect()
        group.barrier()
        pid = os.fork()
        if pid == 0:
            try:
                error = raised(phalanx.ClosedError, group.all_reduce, torch.ones(1))
                contains(error, "this process was forked from the rank", "child processes make their own")
                os._exit(7)
            finally:
                os._exit(1)
        _, status = os.waitpid(pid, 0)
        tensor = torch.ones(1)
        group.all_reduce(tensor)
        same(tensor, torch.full((1,), 2.0), "the rank itself goes on")
        return os.waitstatus_to_exitcode(status)

    assert run_ranks("process", 2, program) == [7, 7]


def test_a_child_that_ends_in_good_order_does_not_close_the_parent_s_group() -> None:
    def program() -> int:
        group = phalanx.connect(timeout_s=10)
        tensor = torch.ones(200_000)
        group.all_reduce(tensor, async_op=True).wait()  # the group has a thread of its own now
        pid = os.fork()
        if pid == 0:
            signal.alarm(3)  # a child that hangs ends by this signal
            del group
            os._exit(0)
        _, status = os.waitpid(pid, 0)
        group.all_reduce(tensor, async_op=True).wait()
        same(tensor, torch.full((200_000,), 4.0))
        return os.waitstatus_to_exitcode(status)

    assert run_ranks("process", 2, program) == [0, 0]
