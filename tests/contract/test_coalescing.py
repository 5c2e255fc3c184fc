from __future__ import annotations

from typing import Any

import pytest
import torch

import phalanx
from phalanx import Group, ReduceOp
from phalanx.groups.shared_memory import SharedMemoryGroup
from tests.checks import same
from tests.reference import DTYPES, reduced, values
from tests.worlds import every_world, worlds


@every_world
def test_a_list_of_tensors_is_reduced_in_one_call(group: Group) -> None:
    """FEATURES.md B6: float32, float32 and complex64 in one list."""
    others = group.size - 1
    is_master = group.rank == 0
    masters, workers = (2.0, 3.0, 2 + 3j), (10.0, 11.0, 10 + 11j)
    tensors = [torch.full((number + 1, 2), value) for number, value in enumerate(masters if is_master else workers)]
    assert [tensor.dtype for tensor in tensors] == [torch.float32, torch.float32, torch.complex64]
    assert group.all_reduce_coalesced(tensors) is None
    for number, tensor in enumerate(tensors):
        expected = masters[number] + workers[number] * others
        same(tensor, torch.full((number + 1, 2), expected).to(tensor.dtype), number)
    cases = [
        (ReduceOp.PRODUCT, [1, 2], [3, 4], [3**others, 2 * 4**others]),
        (ReduceOp.MIN, [1, 4], [2, 3], [1, 3] if others else [1, 4]),
        (ReduceOp.MAX, [1, 4], [2, 3], [2, 4] if others else [1, 4]),
    ]
    for op, master, worker, expected_values in cases:
        tensors = [torch.full((3,), float(value)) for value in (master if is_master else worker)]
        group.all_reduce_coalesced(tensors, op)
        assert [float(tensor[0]) for tensor in tensors] == [float(value) for value in expected_values], op


@every_world
def test_lists_mix_types_and_sizes(group: Group) -> None:
    """Small neighbours travel together, large ones alone; empty ones may lie between."""
    shapes = [(torch.float32, 3), (torch.float32, 0), (torch.float32, 70_000), (torch.float32, 5)]
    shapes += [(dtype, 4) for dtype in DTYPES] + [(torch.int64, 40_000)] * 3
    inputs = [
        [values(dtype, count, rank, number) for number, (dtype, count) in enumerate(shapes)]
        for rank in range(group.size)
    ]
    tensors = [tensor.clone() for tensor in inputs[group.rank]]
    work: Any = group.all_reduce_coalesced(tensors, async_op=True)
    work.wait()
    for number, tensor in enumerate(tensors):
        same(tensor, reduced([its[number] for its in inputs], ReduceOp.SUM), shapes[number])


@every_world
def test_a_coalescing_block_launches_its_calls_at_its_end(group: Group) -> None:
    tensors = [torch.full((number + 1,), float(number)) for number in range(5)]
    with group.coalescing():
        for tensor in tensors:
            group.all_reduce(tensor)
        same(tensors[4], torch.full((5,), 4.0), "not yet")
    for number, tensor in enumerate(tensors):
        same(tensor, torch.full((number + 1,), float(number * group.size)), number)


@every_world
def test_an_asynchronous_block_is_waited_for_itself(group: Group) -> None:
    tensors = [torch.ones(3) for _ in range(4)]
    with group.coalescing(async_op=True) as block:
        for tensor in tensors:
            group.all_reduce(tensor)
        with pytest.raises(phalanx.UsageError, match="only after its end"):
            block.wait()
    block.wait()
    for tensor in tensors:
        same(tensor, torch.full((3,), float(group.size)))


@every_world
def test_blocks_take_other_collectives_and_different_ops(group: Group) -> None:
    n = group.size
    first, second, third = torch.ones(2), torch.full((2,), float(group.rank)), torch.ones(2)
    with group.coalescing():
        group.all_reduce(first)
        group.all_reduce(second, ReduceOp.MAX)
        group.all_reduce(tensor=third, op=ReduceOp.SUM)
    same(first, torch.full((2,), float(n)))
    same(second, torch.full((2,), float(n - 1)))
    same(third, torch.full((2,), float(n)))
    outputs = [torch.zeros(n, 3, dtype=torch.int64) for _ in range(3)]
    with group.coalescing():
        for number, output in enumerate(outputs):
            group.all_gather_single(output, torch.full((3,), group.rank * 10 + number))
    for number, output in enumerate(outputs):
        same(output[:, 0], torch.arange(n) * 10 + number)


@every_world
def test_gathering_tensors_of_different_shapes_in_one_block(group: Group) -> None:
    """FEATURES.md B8, all_gather_coalesced: also with empty ones between."""
    shapes = [(1,), (2, 2), (0,), (3, 3, 3), (0, 5)]
    inputs = [torch.full(shape, float(group.rank + 1)) for shape in shapes]
    outputs = [[torch.zeros(shape) for _ in range(group.size)] for shape in shapes]
    with group.coalescing(async_op=True) as block:
        for output, given in zip(outputs, inputs, strict=True):
            group.all_gather(output, given)
    block.wait()
    for shape, output in zip(shapes, outputs, strict=True):
        for rank, tensor in enumerate(output):
            same(tensor, torch.full(shape, float(rank + 1)), shape)


@every_world
def test_a_block_of_mixed_kinds_is_refused(group: Group) -> None:
    def mix() -> None:
        with group.coalescing():
            group.all_reduce(torch.ones(1))
            group.broadcast(torch.ones(1))

    with pytest.raises(phalanx.UsageError, match="requires all collectives to be the same type"):
        mix()
    tensor = torch.ones(1)
    group.all_reduce(tensor)
    same(tensor, torch.full((1,), float(group.size)), "and the group still works")


@worlds(2)
def test_if_one_rank_s_block_is_refused_the_others_learn_it_at_once(group: Group) -> None:
    if group.rank == 1:

        def mix() -> None:
            with group.coalescing():
                group.all_reduce(torch.ones(1))
                group.broadcast(torch.ones(1))

        with pytest.raises(phalanx.UsageError):
            mix()
    else:
        with pytest.raises(phalanx.PeerFailedError) as caught:
            group.all_reduce(torch.ones(1))
        assert caught.value.culprits == (1,)
    group.barrier()


@every_world
def test_handles_inside_a_block_refuse_use(group: Group) -> None:
    with group.coalescing(async_op=True) as block:
        handle: Any = group.all_reduce(torch.ones(1), async_op=True)
        for name in ("wait", "done", "result", "exception"):
            with pytest.raises(phalanx.UsageError) as caught:
                getattr(handle, name)()
            assert f"Illegal to call {name}" in str(caught.value)
    block.wait()


@every_world
def test_an_exception_inside_a_block_launches_nothing(group: Group) -> None:
    tensor = torch.ones(1)

    def fail() -> None:
        with group.coalescing():
            group.all_reduce(tensor)
            raise KeyError("on purpose")

    with pytest.raises(KeyError, match="on purpose"):
        fail()
    same(tensor, torch.ones(1))
    group.all_reduce(tensor)
    same(tensor, torch.full((1,), float(group.size)), "and calls go out at once again")


@every_world
def test_an_empty_block_does_nothing(group: Group) -> None:
    with group.coalescing():
        pass
    with group.coalescing(async_op=True) as block:
        pass
    block.wait()
    group.barrier()


@worlds(2, 3)
def test_a_refused_call_in_a_block_is_told_and_leaves_the_group_usable(group: SharedMemoryGroup) -> None:
    """The calls after it are refused too: the peers launch them, and would wait for this rank."""
    odd = torch.zeros(2, device="meta") if group.rank == 1 else torch.ones(2)
    inputs = [torch.ones(2), odd, torch.ones(2), torch.ones(2)]

    def gather_in_a_block() -> None:
        with group.coalescing():
            for given in inputs:
                group.all_gather_single(torch.zeros(2 * group.size), given)

    def gather_a_list() -> None:
        group.all_gather_coalesced([[torch.zeros(2) for _ in inputs] for _ in range(group.size)], inputs)

    for gather in (gather_in_a_block, gather_a_list):
        with pytest.raises(phalanx.PhalanxError, match="meta device") as caught:
            gather()
        assert isinstance(caught.value, phalanx.UsageError) == (group.rank == 1)
        total = torch.ones(3)
        group.all_reduce(total)
        same(total, torch.full((3,), float(group.size)))


@worlds(2, 3)
def test_lists_of_other_lengths_than_the_inputs_are_refused(group: SharedMemoryGroup) -> None:
    inputs = [torch.ones(2), torch.ones(3)]
    outputs = [[torch.zeros(2), torch.zeros(3)] for _ in range(group.size)]
    if group.rank == 1:
        outputs[0].pop()
    with pytest.raises(phalanx.PhalanxError, match="2 tensors for each rank") as caught:
        group.all_gather_coalesced(outputs, inputs)
    assert isinstance(caught.value, phalanx.UsageError) == (group.rank == 1)
    total = torch.ones(3)
    group.all_reduce(total)
    same(total, torch.full((3,), float(group.size)))
