"""Every call of torch.distributed against what it must give."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch

from phalanx.errors import MismatchError, OperationTimeoutError, UsageError
from phalanx.torch_backend.untyped import dist
from tests.checks import check, contains, equal, raised
from tests.torch_backend.torch_ranks import run_torch_ranks


def _mine(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    count = torch.Size(shape).numel()
    return ((torch.arange(count) + 1) * (int(dist.get_rank()) + 1)).to(dtype).view(shape)


def _of(rank: int, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    count = torch.Size(shape).numel()
    return ((torch.arange(count) + 1) * (rank + 1)).to(dtype).view(shape)


def _same(given: torch.Tensor, wanted: torch.Tensor) -> None:
    check(torch.equal(given, wanted), f"{given} is not {wanted}")


@pytest.mark.parametrize("ranks", [2, pytest.param(3, marks=pytest.mark.slow), pytest.param(4, marks=pytest.mark.slow)])
def test_collectives_give_what_they_should(ranks: int, tmp_path: Path) -> None:
    def program() -> None:
        size, rank = dist.get_world_size(), dist.get_rank()
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
        world: Any = dist.group.WORLD
        world._reduce_scatter_base(output, torch.cat([_mine(5) + part for part in range(size)])).wait()
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

    run_torch_ranks(tmp_path, ranks, program)


@pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_gathers_give_what_they_should(ranks: int, tmp_path: Path) -> None:
    def program() -> None:
        size = dist.get_world_size()
        everybody = torch.stack([_of(other, 5) for other in range(size)])
        world: Any = dist.group.WORLD
        outputs = [torch.zeros(5) for _ in range(size)]
        dist.all_gather(outputs, _mine(5))
        _same(torch.stack(outputs), everybody)
        single = torch.zeros(size * 5)
        world._allgather_base(single, _mine(5)).wait()
        _same(single, everybody.flatten())
        stacked = torch.zeros(size, 5)
        world.all_gather_single(stacked, _mine(5)).wait()
        _same(stacked, everybody)
        lists = [[torch.zeros(2), torch.zeros(3, 2)] for _ in range(size)]
        dist.all_gather_coalesced(lists, [_mine(2), _mine(3, 2)])
        for other in range(size):
            _same(lists[other][0], _of(other, 2))
            _same(lists[other][1], _of(other, 3, 2))

    run_torch_ranks(tmp_path, ranks, program)


def test_asynchronous_calls_finish_in_any_order(tmp_path: Path) -> None:
    def program() -> None:
        values = [torch.full((1000,), float(number)) for number in range(20)]
        works = [dist.all_reduce(value, async_op=True) for value in values]
        for number in reversed(range(20)):
            check(works[number].wait())
            check(works[number].is_completed() and works[number].is_success())
            check(works[number].exception() is None)
            equal(float(values[number][0]), 2.0 * number)
        check(works[0].result()[0] is values[0])

    run_torch_ranks(tmp_path, 2, program)


def test_all_to_all_with_splits(tmp_path: Path) -> None:
    def program() -> None:
        rank = dist.get_rank()
        given = torch.arange(3.0) + 10 * rank
        taken = torch.zeros(2 if rank == 0 else 4)
        dist.all_to_all_single(taken, given, [1, 1] if rank == 0 else [2, 2], [1, 2])
        equal(taken.tolist(), [0.0, 10.0] if rank == 0 else [1.0, 2.0, 11.0, 12.0])

    run_torch_ranks(tmp_path, 2, program)


def test_messages(tmp_path: Path) -> None:
    def program() -> None:
        rank = dist.get_rank()
        if rank == 0:
            dist.send(torch.tensor([1.0]), dst=1, tag=7)
            dist.send(torch.tensor([2.0]), dst=1, tag=8)
            equal(dist.recv(torch.zeros(1), src=None), 1)
        else:
            late, early = torch.zeros(1), torch.zeros(1)
            dist.recv(late, src=0, tag=8)
            dist.recv(early, src=0, tag=7)
            equal((float(late), float(early)), (2.0, 1.0))
            dist.send(torch.zeros(1), dst=0)
        peer = 1 - rank
        given, taken = torch.full((3,), float(rank)), torch.zeros(3)
        for work in dist.batch_isend_irecv([dist.P2POp(dist.irecv, taken, peer), dist.P2POp(dist.isend, given, peer)]):
            work.wait()
        equal(taken.tolist(), [float(peer)] * 3)
        raised(ValueError, dist.send, given, rank)

    run_torch_ranks(tmp_path, 2, program)


def test_coalescing_in_both_forms(tmp_path: Path) -> None:
    def program() -> None:
        first, second = torch.ones(3), torch.ones(5)
        with dist._coalescing_manager():
            dist.all_reduce(first)
            dist.all_reduce(second)
        equal((float(first[0]), float(second[0])), (2.0, 2.0))
        with dist._coalescing_manager(device=torch.device("cpu"), async_ops=True) as manager:
            dist.all_reduce(first)
            dist.all_reduce(second)
        manager.wait()
        equal((float(first[0]), float(second[0])), (4.0, 4.0))

    run_torch_ranks(tmp_path, 2, program)


def test_complex_and_sparse_tensors(tmp_path: Path) -> None:
    def program() -> None:
        rank = dist.get_rank()
        value = torch.tensor([1 + 2j, 3 - 1j]) * (rank + 1)
        dist.all_reduce(value)
        _same(value, torch.tensor([3 + 6j, 9 - 3j]))
        raised(ValueError, dist.all_reduce, value, dist.ReduceOp.MAX)
        mixed = [torch.ones(2), torch.ones(2, dtype=torch.complex64)]
        dist.all_reduce_coalesced(mixed)
        equal((mixed[0].tolist(), mixed[1].tolist()), ([2.0, 2.0], [2 + 0j, 2 + 0j]))
        sparse = torch.sparse_coo_tensor(torch.tensor([[0, rank + 1]]), torch.tensor([1.0, 5.0]), (4,))
        dist.all_reduce(sparse)
        equal(sparse.to_dense().tolist(), [2.0, 5.0, 5.0, 0.0])
        error = raised(UsageError, dist.all_reduce, sparse, dist.ReduceOp.MAX)
        contains(str(error), "can only be summed")

    run_torch_ranks(tmp_path, 2, program)


def test_objects(tmp_path: Path) -> None:
    def program() -> None:
        rank, size = dist.get_rank(), dist.get_world_size()
        everybody: list[Any] = [None] * size
        dist.all_gather_object(everybody, {"rank": rank, "text": "x" * rank * 1000})
        equal([value["rank"] for value in everybody], list(range(size)))
        shared: list[Any] = [("from", rank), [rank]]
        dist.broadcast_object_list(shared, src=1)
        equal(shared, [("from", 1), [1]])
        mine: list[Any] = [None]
        dist.scatter_object_list(mine, [f"for {other}" for other in range(size)] if rank == 0 else None, src=0)
        equal(mine, [f"for {rank}"])

    run_torch_ranks(tmp_path, 3, program)


def test_futures_chain_and_fail(tmp_path: Path) -> None:
    def program() -> str:
        value = torch.ones(2)
        future = dist.all_reduce(value, async_op=True).get_future()
        doubled = future.then(lambda done: done.value()[0] * 2).wait()
        equal(doubled.tolist(), [4.0, 4.0])

        def reduce_again(done: Any) -> Any:  # a callback may start another collective and wait for it
            return dist.all_reduce(done.value()[0], async_op=True).get_future().wait()[0]

        again = dist.all_reduce(value, async_op=True).get_future().then(reduce_again).wait()
        equal(again.tolist(), [8.0, 8.0])
        work = dist.all_reduce(torch.ones(2 + dist.get_rank()), async_op=True)
        return type(raised(MismatchError, lambda: work.get_future().wait())).__name__

    assert run_torch_ranks(tmp_path, 2, program) == ["MismatchError"] * 2


def test_timeouts_by_call_by_group_and_later(tmp_path: Path) -> None:
    def program() -> None:
        world: Any = dist.group.WORLD
        short = dist.new_group(timeout=timedelta(milliseconds=200))
        changed = dist.new_group()
        dist.distributed_c10d._set_pg_timeout(timedelta(milliseconds=200), changed)
        by_call = dist.new_group()
        if dist.get_rank() == 0:
            error = raised(OperationTimeoutError, dist.all_reduce, torch.ones(1), group=short)
            contains(str(error), "rank 1 did not come")
            raised(OperationTimeoutError, dist.barrier, group=changed)
            assert by_call is not None
            work = by_call.allreduce([torch.ones(1)], timeout=timedelta(milliseconds=200))
            raised(OperationTimeoutError, work.wait)
        world.barrier(timeout=timedelta(seconds=20)).wait()

    run_torch_ranks(tmp_path, 2, program)


@pytest.mark.parametrize("what", ["shape", "dtype", "operation", "root"])
def test_a_mismatch_is_an_error_on_every_rank(what: str, tmp_path: Path) -> None:
    def program() -> str:
        rank = dist.get_rank()
        calls = {
            "shape": lambda: dist.all_reduce(torch.ones(2 + rank)),
            "dtype": lambda: dist.all_reduce(torch.ones(2, dtype=torch.int32 if rank else torch.float32)),
            "operation": lambda: dist.barrier() if rank else dist.all_reduce(torch.ones(1)),
            "root": lambda: dist.broadcast(torch.ones(100_000), src=rank),
        }
        return str(raised(MismatchError, calls[what]))

    for text in run_torch_ranks(tmp_path, 2, program):
        assert "rank 0" in text
        assert "rank 1" in text
        assert "test_calls.py:" in text, "the user's line, not torch's"


def test_bad_input_is_refused_before_anything_is_sent(tmp_path: Path) -> None:
    def program() -> None:
        world: Any = dist.group.WORLD
        error = raised(UsageError, dist.all_to_all_single, torch.zeros(3), torch.zeros(3))
        contains(str(error), "can't share equally")
        raised(UsageError, world.allgather, [[torch.zeros(2)]], [torch.zeros(2)])
        raised(UsageError, world.send, [torch.zeros(1)], 9)
        raised(UsageError, world.broadcast, [torch.zeros(1), torch.zeros(1)], None)
        raised(UsageError, world._end_coalescing, torch.device("cpu"))
        dist.barrier()

    run_torch_ranks(tmp_path, 2, program)


def test_a_receive_of_the_wrong_size_raises(tmp_path: Path) -> None:
    def program() -> str:
        if dist.get_rank() == 0:
            return str(raised(MismatchError, dist.send, torch.zeros(100_000), 1))
        return str(raised(MismatchError, dist.recv, torch.zeros(3), 0))

    assert "sent 400000 bytes" in run_torch_ranks(tmp_path, 2, program)[1]


@pytest.mark.parametrize("level", ["OFF", "INFO", "DETAIL"])
def test_debug_levels_are_accepted(level: str, tmp_path: Path) -> None:
    def program() -> list[float]:
        dist.set_debug_level(getattr(dist.DebugLevel, level))
        value = torch.ones(2)
        dist.all_reduce(value)
        return value.tolist()

    assert run_torch_ranks(tmp_path, 2, program) == [[2.0, 2.0]] * 2
