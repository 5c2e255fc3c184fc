from __future__ import annotations

import gc

import pytest
import torch

import phalanx
from phalanx import ReduceOp
from phalanx.groups.shared_memory import SharedMemoryGroup
from tests.checks import same
from tests.contract.sizes import counts_around_limits
from tests.reference import DTYPES, ops_of, reduced, values
from tests.worlds import every_world, worlds

pytestmark = pytest.mark.host_memory("symmetric tensors lie in the host's shared memory")


@every_world
def test_a_symmetric_tensor_is_a_tensor(group: SharedMemoryGroup) -> None:
    tensor = group.empty(3, 4, dtype=torch.float64)
    assert (tensor.shape, tensor.dtype, tensor.is_contiguous()) == (torch.Size([3, 4]), torch.float64, True)
    assert group.empty(2).dtype == torch.get_default_dtype()
    assert group.empty().shape == torch.Size([])
    assert group.empty(0, 3).shape == torch.Size([0, 3])
    tensor.fill_(group.rank)
    group.barrier()
    same(tensor, torch.full((3, 4), float(group.rank), dtype=torch.float64), "each rank has its own values")


@every_world
def test_all_reduce_of_symmetric_tensors_is_right_for_every_type(group: SharedMemoryGroup) -> None:
    for dtype in DTYPES:
        tensor = group.empty(9000, dtype=dtype)
        for op in ops_of(dtype):
            inputs = [values(dtype, 9000, rank) for rank in range(group.size)]
            tensor.copy_(inputs[group.rank])
            group.all_reduce(tensor, op)
            same(tensor, reduced(inputs, op), (dtype, op))


@every_world
@pytest.mark.slow
def test_all_reduce_of_symmetric_tensors_is_right_around_every_internal_size(group: SharedMemoryGroup) -> None:
    whole = group.empty(2_000_000)
    for count in [*counts_around_limits(4), 2_000_000]:
        inputs = [values(torch.float32, count, rank) for rank in range(group.size)]
        tensor = whole[:count]
        tensor.copy_(inputs[group.rank])
        group.all_reduce(tensor)
        same(tensor, reduced(inputs, ReduceOp.SUM), count)


@every_world
def test_symmetric_tensors_are_told_apart_however_many_there_were(group: SharedMemoryGroup) -> None:
    first = group.empty(9000).fill_(group.rank + 1)
    for number in (1 << 20, 1 << 32, 1 << 44):
        group._meetings["symmetric tensor"] = number  # so many came before
        other = group.empty(9000).fill_(group.rank + 1)
        tensor = first if group.rank == 0 else other
        group.all_reduce(tensor)
        same(tensor, torch.full((9000,), group.size * (group.size + 1) / 2), number)
        first.fill_(group.rank + 1)


@every_world
def test_parts_and_views_of_symmetric_tensors_work(group: SharedMemoryGroup) -> None:
    whole = group.empty(40, 5000)
    whole.fill_(1.0)
    group.all_reduce(whole[10:20])
    expected = torch.ones(40, 5000)
    expected[10:20] = group.size
    same(whole, expected, "rows")
    group.all_reduce(whole[:, ::2])
    expected[:, ::2] *= group.size
    same(whole, expected, "columns, in pieces")


@worlds(2, 3, 4)
def test_symmetric_and_ordinary_tensors_may_meet(group: SharedMemoryGroup) -> None:
    """Rank 0 gives a symmetric tensor, the others not; or all symmetric ones, at different places."""
    shared = group.empty(2, 50_000)
    for number in range(group.size):
        tensor = shared[0] if group.rank == number else torch.empty(50_000)
        tensor.fill_(group.rank + 1.0)
        group.all_reduce(tensor)
        same(tensor, torch.full((50_000,), group.size * (group.size + 1) / 2), number)
    tensor = shared[group.rank % 2]
    tensor.fill_(1.0)
    group.all_reduce(tensor)
    same(tensor, torch.full((50_000,), float(group.size)), "different places")


@every_world
def test_symmetric_tensors_take_part_in_everything(group: SharedMemoryGroup) -> None:
    n, me = group.size, group.rank
    tensor, blocks = group.empty(5000), group.empty(n, 5000)
    tensor.fill_(float(me))
    group.all_gather_single(blocks, tensor)
    same(blocks, torch.arange(float(n)).repeat_interleave(5000).view(n, 5000))
    group.reduce_scatter_single(tensor, blocks)
    same(tensor, torch.full((5000,), float(me * n)))
    group.broadcast(tensor, n - 1)
    same(tensor, torch.full((5000,), float((n - 1) * n)))
    work = group.all_reduce(tensor, async_op=True)
    work.wait()
    same(tensor, torch.full((5000,), float((n - 1) * n * n)))


@worlds(2, 3)
def test_symmetric_memory_goes_with_the_last_tensor(group: SharedMemoryGroup) -> None:
    def mappings() -> int:
        with open("/proc/self/maps") as lines:
            return sum(":symmetric" in line for line in lines)

    tensor = group.empty(100_000)
    view = tensor[10:20]
    group.barrier()
    assert mappings() > 0
    del tensor
    view.fill_(3.0)
    same(view, torch.full((10,), 3.0), "a view keeps it")
    group.barrier()
    del view
    gc.collect()
    group.barrier()
    group.barrier()
    assert mappings() == 0
    for _ in range(50):
        group.empty(1000).fill_(0)
    group.barrier()
    gc.collect()
    group.barrier()
    assert mappings() == 0


@worlds(2)
def test_a_symmetric_tensor_outlives_its_group(group: SharedMemoryGroup) -> None:
    tensor = group.empty(10_000)
    tensor.fill_(2.0)
    group.all_reduce(tensor)
    group.close()
    same(tensor, torch.full((10_000,), 4.0))


@worlds(2, 3)
def test_ranks_that_want_different_symmetric_tensors_disagree(group: SharedMemoryGroup) -> None:
    with pytest.raises(phalanx.MismatchError) as caught:
        group.empty(3 + (group.rank == 1))
    assert "rank 1 wants torch.float32 (4,)" in str(caught.value)
    assert "rank 0 wants torch.float32 (3,)" in str(caught.value)


@worlds(2)
def test_more_symmetric_memory_than_there_is_says_how_much_was_needed(group: SharedMemoryGroup) -> None:
    with pytest.raises(phalanx.SharedMemoryError) as caught:
        group.empty(1 << 50, dtype=torch.uint8)
    assert caught.value.needed_bytes == 2 << 50
    assert 0 < caught.value.available_bytes < 1 << 50
    assert "not enough shared memory for a symmetric tensor of 2 ranks" in str(caught.value)
    assert "needed     2147483648.0 MiB" in str(caught.value)
    assert isinstance(caught.value, MemoryError)
    tensor = group.empty(3)
    tensor.fill_(1.0)
    group.all_reduce(tensor)
    same(tensor, torch.full((3,), 2.0), "and smaller ones can still be had")


@worlds(2)
def test_a_symmetric_tensor_larger_than_any_memory_is_refused(group: SharedMemoryGroup) -> None:
    for shape in ((1 << 62, 4), (1 << 51, 4), (-1,)):
        with pytest.raises(phalanx.UsageError, match=r"a tensor of shape .* is not possible"):
            group.empty(*shape)
    group.all_reduce(group.empty(3).fill_(1))
