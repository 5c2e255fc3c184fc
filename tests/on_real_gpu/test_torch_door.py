"""torch.distributed over phalanx with tensors of a real GPU that several ranks share."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from phalanx.torch_backend.untyped import dist
from tests.on_real_gpu.gpu_ranks import on_gpu, through_torch

pytestmark = through_torch([2, 4])

_SLOW_CYCLES = 50_000_000  # some 30 ms: long after the call that started it has returned
_COUNTS = (1, 1000, 300_001)


def _full(value: float, device: torch.device, count: int = 1000, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.full((count,), value, device=device, dtype=dtype)


def _numbers(world_size: int) -> list[float]:
    return [float(rank + 1) for rank in range(world_size)]


@pytest.mark.parametrize("count", _COUNTS)
def test_reductions(device: torch.device, rank: int, world_size: int, count: int) -> None:
    numbers = _numbers(world_size)
    for op, expected in (
        (dist.ReduceOp.SUM, sum(numbers)),
        (dist.ReduceOp.AVG, sum(numbers) / world_size),
        (dist.ReduceOp.MAX, numbers[-1]),
        (dist.ReduceOp.MIN, numbers[0]),
    ):
        value = _full(numbers[rank], device, count)
        dist.all_reduce(value, op)
        assert bool((value == expected).all()), op
    value = _full(numbers[rank], device, count)
    dist.reduce(value, 1)
    assert rank != 1 or bool((value == sum(numbers)).all())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64, torch.int64, torch.uint8])
def test_types(device: torch.device, rank: int, world_size: int, dtype: torch.dtype) -> None:
    value = _full(rank + 1, device, 4097, dtype)
    dist.all_reduce(value)
    assert value.dtype is dtype
    assert bool((value == sum(_numbers(world_size))).all())


def test_complex_tensors(device: torch.device, rank: int, world_size: int) -> None:
    value = torch.full((100,), complex(rank, 1), device=device)
    dist.all_reduce(value)
    assert bool((value == complex(sum(range(world_size)), world_size)).all())


@pytest.mark.parametrize("count", _COUNTS)
def test_copies(device: torch.device, rank: int, world_size: int, count: int) -> None:
    mine, numbers = _full(rank + 1, device, count), _numbers(world_size)
    gathered = [torch.empty_like(mine) for _ in range(world_size)]
    dist.all_gather(gathered, mine)
    assert [float(one[-1]) for one in gathered] == numbers
    whole = torch.empty(world_size * count, device=device)
    dist.group.WORLD._allgather_base(whole, mine).wait()
    assert whole[::count].tolist() == numbers
    value = mine.clone()
    dist.broadcast(value, 1)
    assert bool((value == 2.0).all())
    dist.scatter(value, gathered if rank == 0 else None)
    assert bool((value == mine).all())
    collected = [torch.zeros_like(mine) for _ in range(world_size)] if rank == 0 else None
    dist.gather(mine, collected)
    assert collected is None or [float(one[0]) for one in collected] == numbers


@pytest.mark.parametrize("count", _COUNTS)
def test_exchanges(device: torch.device, rank: int, world_size: int, count: int) -> None:
    numbers = _numbers(world_size)
    output = torch.empty(count, device=device)
    dist.reduce_scatter(output, [_full(rank + 1 + 10 * other, device, count) for other in range(world_size)])
    assert bool((output == sum(numbers) + 10 * rank * world_size).all())
    blocks = _full(rank + 1, device, world_size * count)
    dist.group.WORLD._reduce_scatter_base(output, blocks).wait()
    assert bool((output == sum(numbers)).all())
    received = torch.empty_like(blocks)
    dist.all_to_all_single(received, blocks)
    assert received[::count].tolist() == numbers
    splits = [other + 1 for other in range(world_size)]  # rank r gets r + 1 rows of everybody
    rows = torch.empty(world_size * (rank + 1), device=device)
    dist.all_to_all_single(rows, _full(rank + 1, device, sum(splits)), [rank + 1] * world_size, splits)
    assert rows.tolist() == [number for number in numbers for _ in range(rank + 1)]


def test_strided_tensors(device: torch.device, rank: int, world_size: int) -> None:
    value = torch.arange(1200.0, device=device).view(30, 40).t()[::2]
    expected = value.cpu() * world_size
    dist.all_reduce(value)
    assert torch.equal(value.cpu(), expected)


def test_messages(device: torch.device, rank: int, world_size: int) -> None:
    right, left = (rank + 1) % world_size, (rank - 1) % world_size
    for count in (1, 500_000):
        mine, theirs = _full(rank, device, count), torch.empty(count, device=device)
        operations = [dist.P2POp(dist.isend, mine, right), dist.P2POp(dist.irecv, theirs, left)]
        for work in dist.batch_isend_irecv(operations):
            work.wait()
        assert bool((theirs == left).all())
    if rank == 0:
        dist.send(_full(7, device), 1)
    elif rank == 1:
        value = torch.empty(1000, device=device)
        assert dist.recv(value) == 0  # from anybody
        assert bool((value == 7).all())


def test_objects(device: torch.device, rank: int, world_size: int) -> None:
    told: list[Any] = [None] * world_size
    dist.all_gather_object(told, {"rank": rank, "tensor": torch.tensor([rank])})
    assert [one["rank"] for one in told] == list(range(world_size))
    listed = ["word" if rank == 0 else None]
    dist.broadcast_object_list(listed, device=device)  # the pickle goes by the GPU
    assert listed == ["word"]


def test_sparse_tensors_are_summed(device: torch.device, rank: int, world_size: int) -> None:
    value = torch.sparse_coo_tensor(torch.tensor([[rank, 5]]), torch.ones(2), (8,), check_invariants=False).to(device)
    dist.all_reduce(value)
    dense = value.to_dense().tolist()
    assert dense[5] == world_size
    assert all(dense[other] == 1 for other in range(world_size))


def test_a_collective_comes_after_what_its_stream_was_given_before(device: torch.device, rank: int) -> None:
    total = sum(_numbers(dist.get_world_size()))
    value, side = torch.zeros(100_000, device=device), torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        torch.cuda._sleep(_SLOW_CYCLES)
        value.fill_(rank + 1)
        work = dist.all_reduce(value, async_op=True)
    work.wait()
    third = torch.cuda.Stream()
    with torch.cuda.stream(third):  # not ordered with the others: waiting on the host is enough
        seen = value.clone()
    third.synchronize()
    assert bool((seen == total).all())


def test_blocking_calls_wait_for_the_stream_too(device: torch.device, rank: int, world_size: int) -> None:
    for _ in range(3):
        torch.cuda._sleep(_SLOW_CYCLES)
        value = _full(rank + 1, device, 50_000)
        dist.all_reduce(value)
        assert bool((value == sum(_numbers(world_size))).all())


def test_memory_that_is_given_back_early_is_not_reused_early(device: torch.device, rank: int, world_size: int) -> None:
    count, pending = 1 << 18, []
    for step in range(20):
        torch.cuda._sleep(_SLOW_CYCLES // 10)
        mine = _full(100 * step + rank, device, count)
        outputs = [torch.empty(count, device=device) for _ in range(world_size)]
        pending.append((outputs, dist.all_gather(outputs, mine, async_op=True)))
        del mine
        _full(-1, device, count)  # would take its place
    for step, (outputs, work) in enumerate(pending):
        work.wait()
        for other, output in enumerate(outputs):
            assert bool((output == 100 * step + other).all()), (step, other)


def test_memory_of_what_nobody_waits_for_is_given_back(device: torch.device, rank: int) -> None:
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    for _ in range(8):
        dist.all_reduce(_full(1, device, 1 << 20), async_op=True)
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() == before


def test_synchronizing_the_device_waits_for_collectives(device: torch.device, rank: int, world_size: int) -> None:
    value = _full(1, device, 1 << 22)
    torch.cuda._sleep(_SLOW_CYCLES)
    work = dist.all_reduce(value, async_op=True)
    torch.cuda.synchronize()
    assert work.is_completed()
    assert bool((value == world_size).all())


def test_a_barrier_waits_for_the_streams(device: torch.device, rank: int) -> None:
    torch.cuda._sleep(_SLOW_CYCLES)
    event = torch.cuda.Event()
    event.record()
    dist.barrier()
    assert event.query()


def test_cpu_and_gpu_tensors_take_turns(device: torch.device, rank: int, world_size: int) -> None:
    pending = []
    for step in range(40):
        value = torch.full((1 + 5000 * (step % 5),), float(step), device="cpu" if step % 3 == 0 else device)
        pending.append((value, dist.all_reduce(value, async_op=True)))
    for step, (value, work) in enumerate(pending):
        work.wait()
        assert bool((value == step * world_size).all()), step


def test_python_code_gets_a_future_while_the_stream_is_busy(device: torch.device, rank: int, world_size: int) -> None:
    value = _full(1, device, 1 << 20)
    torch.cuda._sleep(_SLOW_CYCLES)
    future = dist.all_reduce(value, async_op=True).get_future()
    assert not future.done()
    assert bool((future.wait()[0] == world_size).all())


def test_callbacks_of_futures_run_in_order_with_streams(device: torch.device, rank: int, world_size: int) -> None:
    value = _full(1, device, 1 << 20)

    def double(done: Any) -> Tensor:
        torch.cuda._sleep(_SLOW_CYCLES)
        return done.value()[0] * 2  # type: ignore[no-any-return]

    future = dist.all_reduce(value, async_op=True).get_future().then(double)
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        seen = future.wait().clone()  # puts the current stream behind the callback's
    side.synchronize()
    assert bool((seen == 2 * world_size).all())


def test_a_callback_may_run_a_collective(device: torch.device, rank: int, world_size: int) -> None:
    def again(done: Any) -> Tensor:
        (tensor,) = done.value()
        dist.all_reduce(tensor)
        return tensor  # type: ignore[no-any-return]

    future = dist.all_reduce(_full(1, device), async_op=True).get_future().then(again)
    assert bool((future.wait() == world_size**2).all())


def test_coalesced_calls(device: torch.device, rank: int, world_size: int) -> None:
    values = [_full(rank + at, device, 100 * (at + 1)) for at in range(5)]
    with dist._coalescing_manager(device=device, async_ops=True) as works:
        for value in values:
            dist.all_reduce(value)
    works.wait()
    for at, value in enumerate(values):
        assert bool((value == sum(range(world_size)) + at * world_size).all())


def test_functional_collectives(device: torch.device, rank: int, world_size: int) -> None:
    import torch.distributed._functional_collectives as functional

    mine = _full(rank + 1, device, 8)
    assert bool((functional.all_reduce(mine, "sum", dist.group.WORLD) == sum(_numbers(world_size))).all())
    whole = functional.all_gather_tensor(mine, 0, dist.group.WORLD)
    assert whole[::8].tolist() == _numbers(world_size)


@on_gpu(4)
def test_sub_groups(device: torch.device, rank: int) -> None:
    halves = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    value = _full(rank, device)
    dist.all_reduce(value, group=halves[rank // 2])
    assert bool((value == (1 if rank < 2 else 5)).all())
