"""Every call of torch.distributed against what it must give."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
import torch

from phalanx.errors import MismatchError, OperationTimeoutError, UsageError
from phalanx.torch_backend.untyped import dist

pytestmark = [pytest.mark.ranks(2), pytest.mark.usefixtures("process_group")]
torch_deprecates = pytest.mark.filterwarnings("ignore:.torch.distributed.all_.*_coalesced. will be deprecated")


def _mine(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    count = torch.Size(shape).numel()
    return ((torch.arange(count) + 1) * (int(dist.get_rank()) + 1)).to(dtype).view(shape)


def _of(rank: int, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    count = torch.Size(shape).numel()
    return ((torch.arange(count) + 1) * (rank + 1)).to(dtype).view(shape)


def _same(given: torch.Tensor, wanted: torch.Tensor) -> None:
    assert torch.equal(given, wanted), f"{given} is not {wanted}"


@pytest.mark.ranks([2, 3, 4])
def test_collectives_give_what_they_should(process_group: Any, rank: int, world_size: int) -> None:
    size = world_size
    everybody = torch.stack([_of(other, 5) for other in range(size)])
    for op, wanted in (
        (dist.ReduceOp.SUM, everybody.sum(0)),
        (dist.ReduceOp.MAX, everybody.amax(0)),
        (dist.ReduceOp.MIN, everybody.amin(0)),
        (dist.ReduceOp.PRODUCT, everybody.prod(0)),
        (dist.ReduceOp.AVG, everybody.mean(0)),
    ):
        value = _mine(5)
        dist.all_reduce(value, op=op)
        torch.testing.assert_close(value, wanted)
    value = _mine(5)
    dist.reduce(value, dst=size - 1)
    _same(value, everybody.sum(0) if rank == size - 1 else _mine(5))
    value = _mine(5)
    dist.broadcast(value, src=1)
    _same(value, _of(1, 5))
    output = torch.zeros(5)
    dist.reduce_scatter(output, [_mine(5) + part for part in range(size)])
    _same(output, everybody.sum(0) + size * rank)
    process_group._reduce_scatter_base(output, torch.cat([_mine(5) + part for part in range(size)])).wait()
    _same(output, everybody.sum(0) + size * rank)
    gathered = [torch.zeros(5) for _ in range(size)] if rank == 0 else None
    dist.gather(_mine(5), gathered, dst=0)
    if gathered is not None:
        _same(torch.stack(gathered), everybody)
    dist.scatter(output, [_of(part, 5) for part in range(size)] if rank == 1 else None, src=1)
    _same(output, _mine(5))
    exchanged = [torch.zeros(2) for _ in range(size)]
    dist.all_to_all(exchanged, [_mine(2) * 10 + part for part in range(size)])
    for other in range(size):
        _same(exchanged[other], _of(other, 2) * 10 + rank)
    dist.barrier()


@pytest.mark.ranks([2, 4])
@torch_deprecates
def test_gathers_give_what_they_should(process_group: Any) -> None:
    size = dist.get_world_size()
    everybody = torch.stack([_of(other, 5) for other in range(size)])
    outputs = [torch.zeros(5) for _ in range(size)]
    dist.all_gather(outputs, _mine(5))
    _same(torch.stack(outputs), everybody)
    single = torch.zeros(size * 5)
    process_group._allgather_base(single, _mine(5)).wait()
    _same(single, everybody.flatten())
    stacked = torch.zeros(size, 5)
    process_group.all_gather_single(stacked, _mine(5)).wait()
    _same(stacked, everybody)
    lists = [[torch.zeros(2), torch.zeros(3, 2)] for _ in range(size)]
    dist.all_gather_coalesced(lists, [_mine(2), _mine(3, 2)])
    for other in range(size):
        _same(lists[other][0], _of(other, 2))
        _same(lists[other][1], _of(other, 3, 2))


def test_asynchronous_calls_finish_in_any_order() -> None:
    values = [torch.full((1000,), float(number)) for number in range(20)]
    works = [dist.all_reduce(value, async_op=True) for value in values]
    for number in reversed(range(20)):
        assert works[number].wait()
        assert works[number].is_completed()
        assert works[number].is_success()
        assert works[number].exception() is None
        assert float(values[number][0]) == 2.0 * number
    assert works[0].result()[0] is values[0]


def test_all_to_all_with_splits(rank: int) -> None:
    given = torch.arange(3.0) + 10 * rank
    taken = torch.zeros(2 if rank == 0 else 4)
    dist.all_to_all_single(taken, given, [1, 1] if rank == 0 else [2, 2], [1, 2])
    assert taken.tolist() == ([0.0, 10.0] if rank == 0 else [1.0, 2.0, 11.0, 12.0])


def test_messages(rank: int) -> None:
    if rank == 0:
        dist.send(torch.tensor([1.0]), dst=1, tag=7)
        dist.send(torch.tensor([2.0]), dst=1, tag=8)
        assert dist.recv(torch.zeros(1), src=None) == 1
    else:
        late, early = torch.zeros(1), torch.zeros(1)
        dist.recv(late, src=0, tag=8)
        dist.recv(early, src=0, tag=7)
        assert (float(late), float(early)) == (2.0, 1.0)
        dist.send(torch.zeros(1), dst=0)
    peer = 1 - rank
    given, taken = torch.full((3,), float(rank)), torch.zeros(3)
    for work in dist.batch_isend_irecv([dist.P2POp(dist.irecv, taken, peer), dist.P2POp(dist.isend, given, peer)]):
        work.wait()
    assert taken.tolist() == [float(peer)] * 3
    with pytest.raises(ValueError, match="should not be the same"):
        dist.send(given, rank)


def test_coalescing_in_both_forms() -> None:
    first, second = torch.ones(3), torch.ones(5)
    with dist._coalescing_manager():
        dist.all_reduce(first)
        dist.all_reduce(second)
    assert (float(first[0]), float(second[0])) == (2.0, 2.0)
    with dist._coalescing_manager(device=torch.device("cpu"), async_ops=True) as manager:
        dist.all_reduce(first)
        dist.all_reduce(second)
    manager.wait()
    assert (float(first[0]), float(second[0])) == (4.0, 4.0)


@torch_deprecates
def test_complex_and_sparse_tensors(rank: int) -> None:
    value = torch.tensor([1 + 2j, 3 - 1j]) * (rank + 1)
    dist.all_reduce(value)
    _same(value, torch.tensor([3 + 6j, 9 - 3j]))
    with pytest.raises(ValueError, match="on complex tensors"):
        dist.all_reduce(value, dist.ReduceOp.MAX)
    mixed = [torch.ones(2), torch.ones(2, dtype=torch.complex64)]
    dist.all_reduce_coalesced(mixed)
    assert (mixed[0].tolist(), mixed[1].tolist()) == ([2.0, 2.0], [2 + 0j, 2 + 0j])
    sparse = torch.sparse_coo_tensor(
        torch.tensor([[0, rank + 1]]), torch.tensor([1.0, 5.0]), (4,), check_invariants=True
    )
    dist.all_reduce(sparse)
    assert sparse.to_dense().tolist() == [2.0, 5.0, 5.0, 0.0]
    trained = torch.sparse_coo_tensor(torch.tensor([[rank]]), torch.ones(1), (3,), requires_grad=True)
    dist.all_reduce(trained)
    assert trained.to_dense().tolist() == [1.0, 1.0, 0.0]
    with pytest.raises(UsageError, match="can only be summed"):
        dist.all_reduce(sparse, dist.ReduceOp.MAX)


@pytest.mark.ranks(3)
def test_sparse_tensors_are_added_up_whatever_their_shape_is(rank: int, world_size: int) -> None:
    for shape, sparse_dims in [((7,), 1), ((5, 4), 2), ((5, 4, 3), 2), ((6, 2, 3), 1), ((3,), 0), ((2, 0), 2)]:
        for dtype in (torch.float32, torch.bfloat16, torch.int64, torch.bool):  # torch gives us a copy of complex ones
            tensors = [_sparse(shape, sparse_dims, other, dtype) for other in range(world_size)]
            total = sum(tensor.to_dense().double() for tensor in tensors)
            mine = tensors[rank]
            dist.all_reduce(mine)
            assert mine.is_coalesced()
            assert mine.dtype is dtype
            _same(mine.to_dense().double(), total.bool().double() if dtype is torch.bool else total)


def _sparse(shape: tuple[int, ...], sparse_dims: int, rank: int, dtype: torch.dtype) -> Any:
    """Return a tensor that names places twice; rank 1 has none."""
    number = 0 if rank == 1 or 0 in shape else 6
    indices = torch.empty(sparse_dims, number, dtype=torch.int64)
    for row, length in zip(indices, shape, strict=False):
        row.copy_(torch.arange(number) * (rank + 1) % max(length, 1))
    values = _of(rank, number, *shape[sparse_dims:]).remainder(5).to(dtype)
    return torch.sparse_coo_tensor(indices, values, shape, check_invariants=True)


@pytest.mark.ranks([2, 3])
def test_sparse_tensors_get_the_same_bits_whatever_a_rank_has_told_its_processor(rank: int, world_size: int) -> None:
    tiny = torch.tensor([1], dtype=torch.int32).view(torch.float32)
    torch.set_flush_denormal(rank == 1)
    sparse = torch.sparse_coo_tensor(torch.tensor([[0, rank + 1]]), tiny.expand(2), (5,), check_invariants=True)
    dist.all_reduce(sparse)
    torch.set_flush_denormal(False)
    assert sparse.coalesce().values().view(torch.int32).tolist() == [world_size, *[1] * world_size]


@pytest.mark.ranks(3)
def test_objects(rank: int, world_size: int) -> None:
    size = world_size
    everybody: list[Any] = [None] * size
    dist.all_gather_object(everybody, {"rank": rank, "text": "x" * rank * 1000})
    assert [value["rank"] for value in everybody] == list(range(size))
    shared: list[Any] = [("from", rank), [rank]]
    dist.broadcast_object_list(shared, src=1)
    assert shared == [("from", 1), [1]]
    mine: list[Any] = [None]
    dist.scatter_object_list(mine, [f"for {other}" for other in range(size)] if rank == 0 else None, src=0)
    assert mine == [f"for {rank}"]


def test_futures_chain_and_fail() -> None:
    value = torch.ones(2)
    future = dist.all_reduce(value, async_op=True).get_future()
    doubled = future.then(lambda done: done.value()[0] * 2).wait()
    assert doubled.tolist() == [4.0, 4.0]

    def reduce_again(done: Any) -> Any:  # a callback may start another collective and wait for it
        return dist.all_reduce(done.value()[0], async_op=True).get_future().wait()[0]

    again = dist.all_reduce(value, async_op=True).get_future().then(reduce_again).wait()
    assert again.tolist() == [8.0, 8.0]
    work = dist.all_reduce(torch.ones(2 + dist.get_rank()), async_op=True)
    with pytest.raises(MismatchError):
        work.get_future().wait()


def test_timeouts_by_call_by_group_and_later(process_group: Any) -> None:
    short = dist.new_group(timeout=timedelta(milliseconds=200))
    changed = dist.new_group()
    dist.distributed_c10d._set_pg_timeout(timedelta(milliseconds=200), changed)
    by_call = dist.new_group()
    if dist.get_rank() == 0:
        with pytest.raises(OperationTimeoutError, match="rank 1 did not come"):
            dist.all_reduce(torch.ones(1), group=short)
        with pytest.raises(OperationTimeoutError):
            dist.barrier(group=changed)
        assert by_call is not None
        work = by_call.allreduce([torch.ones(1)], timeout=timedelta(milliseconds=200))
        with pytest.raises(OperationTimeoutError):
            work.wait()
    process_group.barrier(timeout=timedelta(seconds=20)).wait()


@pytest.mark.parametrize("what", ["shape", "dtype", "operation", "root"])
def test_a_mismatch_is_an_error_on_every_rank(what: str, rank: int) -> None:
    calls = {
        "shape": lambda: dist.all_reduce(torch.ones(2 + rank)),
        "dtype": lambda: dist.all_reduce(torch.ones(2, dtype=torch.int32 if rank else torch.float32)),
        "operation": lambda: dist.barrier() if rank else dist.all_reduce(torch.ones(1)),
        "root": lambda: dist.broadcast(torch.ones(100_000), src=rank),
    }
    with pytest.raises(MismatchError) as caught:
        calls[what]()
    assert "rank 0" in str(caught.value)
    assert "rank 1" in str(caught.value)
    assert "test_calls.py:" in str(caught.value), "the user's line, not torch's"


def test_bad_input_is_refused_before_anything_is_sent(process_group: Any) -> None:
    with pytest.raises(UsageError, match="can't share equally"):
        dist.all_to_all_single(torch.zeros(3), torch.zeros(3))
    with pytest.raises(UsageError):
        process_group.allgather([[torch.zeros(2)]], [torch.zeros(2)])
    with pytest.raises(UsageError):
        process_group.send([torch.zeros(1)], 9)
    with pytest.raises(UsageError):
        process_group.broadcast([torch.zeros(1), torch.zeros(1)], None)
    with pytest.raises(UsageError):
        process_group._end_coalescing(torch.device("cpu"))
    dist.barrier()


def test_a_receive_of_the_wrong_size_raises(rank: int) -> None:
    if rank == 0:
        with pytest.raises(MismatchError):
            dist.send(torch.zeros(100_000), 1)
    else:
        with pytest.raises(MismatchError, match="sent 400000 bytes"):
            dist.recv(torch.zeros(3), 0)


def test_calls_that_were_waited_for_leave_no_work(process_group: Any, rank: int) -> None:
    options = dist.AllreduceOptions()
    assert options.asyncOp  # whoever says nothing gets a work
    value = _mine(3)
    process_group.allreduce([value], options).wait()
    options.asyncOp = False
    assert process_group.allreduce([value], options) is None
    _same(value, 2 * (_of(0, 3) + _of(1, 3)))
    if rank == 0:
        dist.send(value, 1)
    else:
        received = torch.zeros(3)
        assert dist.recv(received) == 0  # the work of a receive knows the sender
        _same(received, value)


@pytest.mark.parametrize("level", ["OFF", "INFO", "DETAIL"])
def test_debug_levels_are_accepted(level: str) -> None:
    dist.set_debug_level(getattr(dist.DebugLevel, level))
    value = torch.ones(2)
    dist.all_reduce(value)
    assert value.tolist() == [2.0, 2.0]
