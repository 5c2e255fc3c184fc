"""Groups of "nccl" on virtual GPUs: making, splitting, using and ending them as NCCL's."""

from __future__ import annotations

import threading
from datetime import timedelta
from typing import Any

import pytest
import torch

import phalanx
from phalanx.torch_backend.untyped import c10d, dist


@pytest.mark.slow
@pytest.mark.ranks(4)
def test_collectives_compute(nccl: torch.device, rank: int) -> None:
    value = torch.full((3,), float(rank + 1), device=nccl)
    dist.all_reduce(value)
    assert value.tolist() == [10.0] * 3
    assert value.device == nccl
    gathered = [torch.empty(1, device=nccl) for _ in range(4)]
    dist.all_gather(gathered, torch.tensor([float(rank)], device=nccl))
    assert [float(one) for one in gathered] == [0.0, 1.0, 2.0, 3.0]
    shards = torch.empty(2, device=nccl)
    dist.group.WORLD._reduce_scatter_base(shards, torch.arange(8.0, device=nccl)).wait()
    assert shards.tolist() == [8.0 * rank, 8.0 * rank + 4]


@pytest.mark.ranks(2)
def test_a_batch_of_messages_arrives(nccl: torch.device, rank: int) -> None:
    sent, received = torch.full((2,), float(rank), device=nccl), torch.empty(2, device=nccl)
    operations = [dist.P2POp(dist.isend, sent, 1 - rank), dist.P2POp(dist.irecv, received, 1 - rank)]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    assert received.tolist() == [1.0 - rank] * 2


@pytest.mark.ranks(2)
def test_a_coalesced_block_is_waited_for_as_one(nccl: torch.device) -> None:
    values = [torch.ones(2, device=nccl) for _ in range(3)]
    with c10d._coalescing_manager(device=nccl, async_ops=True) as block:
        for value in values:
            dist.all_reduce(value)
    block.wait()
    assert all(value.tolist() == [2.0, 2.0] for value in values)


@pytest.mark.ranks(2)
def test_futures_are_ready(nccl: torch.device) -> None:
    value = torch.ones(1 << 16, device=nccl)
    future = dist.all_reduce(value, async_op=True).get_future()
    assert future.done()
    assert float(future.value()[0].sum()) == 2 * value.numel()
    order = []
    future.then(lambda _: order.append(threading.current_thread()))
    assert order == [threading.main_thread()]


@pytest.mark.ranks(2)
def test_memory_of_what_is_done_is_given_back(nccl: torch.device) -> None:
    dist.all_reduce(torch.ones(1, device=nccl))
    before = torch.cuda.memory_allocated()
    for _ in range(20):
        dist.all_reduce(torch.ones(1, device=nccl), async_op=True).wait()
    assert torch.cuda.memory_allocated() == before
    kept = [dist.all_reduce(torch.ones(1000, device=nccl), async_op=True) for _ in range(20)]
    torch.cuda.synchronize()
    assert kept[0].result()[0].tolist() == [2.0] * 1000
    kept.clear()
    for _ in range(20):
        dist.all_reduce(torch.ones(1000, device=nccl), async_op=True)
    torch.cuda.synchronize()
    with phalanx.devices.no_leaks("a message"):
        one, other = torch.ones(3, device=nccl), torch.empty(3, device=nccl)
        peer = 1 - dist.get_rank()
        for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, one, peer), dist.P2POp(dist.irecv, other, peer)]):
            work.wait()
        del one, other, work


@pytest.mark.ranks(2)
def test_synchronize_waits_for_pending_work(nccl: torch.device) -> None:
    value = torch.ones(1 << 20, device=nccl)
    work = dist.all_reduce(value, async_op=True)
    torch.cuda.synchronize()
    assert work.is_completed()
    assert float(value[-1]) == 2.0


@pytest.mark.slow
@pytest.mark.ranks(4)
def test_split_groups_are_stand_ins_bound_to_the_device(gpus: int, rank: int) -> None:
    device = torch.device("cuda", rank)
    with phalanx.stand_in_for("nccl"):
        dist.init_process_group("nccl", device_id=device)
        half = dist.split_group(None, [[0, 1], [2, 3]])
        assert half.bound_device_id == device
        assert phalanx.is_stand_in(half)
        value = torch.full((1,), float(rank), device=device)
        dist.all_reduce(value, group=half)
        assert float(value) == (1.0 if rank < 2 else 5.0)
        assert dist.group.WORLD._get_backend(device).comm_split_count() == 1
        dist.destroy_process_group()


@pytest.mark.ranks(2)
def test_new_groups_of_a_bound_world_work(gpus: int, rank: int) -> None:
    device = torch.device("cuda", rank)
    with phalanx.stand_in_for("nccl"):
        dist.init_process_group("nccl", device_id=device)
        alone = dist.new_group([1])
        if rank == 1:
            value = torch.ones(1, device=device)
            dist.all_reduce(value, group=alone)
            assert float(value) == 1.0
        dist.barrier(device_ids=[rank])
        dist.destroy_process_group()


@pytest.mark.ranks(2)
def test_no_backend_at_all_means_nccl(gpus: int, rank: int) -> None:
    torch.cuda.set_device(rank)
    with phalanx.stand_in_for("nccl"):
        dist.init_process_group()
        value = torch.ones(1, device="cuda")
        dist.all_reduce(value)
        assert float(value) == 2.0
        assert phalanx.is_stand_in()
        dist.destroy_process_group()


@pytest.mark.ranks(2)
@pytest.mark.parametrize("stood_in_for", [("nccl",), ("nccl", "gloo")], ids="+".join)
def test_a_group_for_both_devices(stood_in_for: tuple[Any, ...], gpus: int, rank: int) -> None:
    torch.cuda.set_device(rank)
    for backend in stood_in_for:
        phalanx.stand_in_for(backend)
    dist.init_process_group("cpu:gloo,cuda:nccl")
    assert (dist.get_backend(), dist.group.WORLD.name()) == ("cpu:gloo,cuda:nccl", "nccl")
    if rank == 0:  # a message may be the first thing that happens on the CPU
        dist.send(torch.ones(1), 1)
    else:
        dist.recv(torch.empty(1), 0)
    for device in ("cpu", "cuda"):
        value = torch.ones(2, device=device)
        dist.all_reduce(value)
        assert value.tolist() == [2.0, 2.0]
    with pytest.raises(ValueError, match="Tensors must be contiguous"):
        dist.all_reduce(torch.ones(3, 4, device="cuda").t())
    dist.destroy_process_group()


@pytest.mark.ranks(2)
def test_objects_travel(nccl: torch.device, rank: int) -> None:
    told: list[Any] = [None, None]
    dist.all_gather_object(told, {"rank": rank})
    assert told == [{"rank": 0}, {"rank": 1}]


@pytest.mark.ranks(2)
def test_options_reach_the_group(gpus: int, rank: int) -> None:
    torch.cuda.set_device(rank)
    with phalanx.stand_in_for("nccl"):
        options = dist.ProcessGroupNCCL.Options(is_high_priority_stream=True)
        options.config.max_ctas, options._timeout = 4, timedelta(seconds=30)
        dist.init_process_group("nccl", pg_options=options, timeout=timedelta(seconds=30))
        backend = dist.group.WORLD._get_backend(torch.device("cuda"))
        assert isinstance(backend, dist.ProcessGroupNCCL)
        assert backend.options.is_high_priority_stream
        assert backend.options.config.max_ctas == 4
        assert backend.options._timeout == timedelta(seconds=30)
        dist.destroy_process_group()


@pytest.mark.ranks(2)
def test_abort_frees_whoever_waits(nccl: torch.device, rank: int) -> None:
    dist.all_reduce(torch.ones(1, device=nccl))
    if rank == 0:
        dist.group.WORLD.abort()
    else:
        with pytest.raises(dist.DistBackendError):
            dist.all_reduce(torch.ones(1, device=nccl))


@pytest.mark.ranks(2)
def test_dist2_makes_the_stand_in(gpus: int, rank: int) -> None:
    dist2 = pytest.importorskip("torch.distributed._dist2")
    with phalanx.stand_in_for("nccl"):
        device = torch.device("cuda", rank)
        group = dist2.new_group("nccl", timedelta(seconds=60), device)
        value = torch.ones(2, device=device)
        group.allreduce(value, timeout=timedelta(seconds=30)).wait()
        assert value.tolist() == [2.0, 2.0]
        half = group.split_group([0], timeout=timedelta(seconds=30), group_name="half")
        assert (half is None) == (rank == 1)
        if half is not None:
            assert half._get_backend(device).options._timeout == timedelta(seconds=30)
        group.shutdown()


@pytest.mark.ranks(2)
def test_whole_numbers_are_averaged_towards_zero(nccl: torch.device, rank: int) -> None:
    average = dist.ReduceOp.AVG
    for dtype in (torch.int8, torch.int32, torch.int64):
        value = torch.tensor([3, -3, 4, rank], device=nccl, dtype=dtype)
        dist.all_reduce(value, op=average)
        assert value.tolist() == [3, -3, 4, 0]
        value = torch.tensor([2 * rank - 5, 2], device=nccl, dtype=dtype)
        dist.all_reduce(value, op=average, async_op=True).wait()
        assert value.tolist() == [-4, 2]
    value = torch.tensor([rank * 3 - 4], device=nccl)
    dist.reduce(value, 0, op=average)
    assert value.tolist() == ([-2] if rank == 0 else [-1])
    shard = torch.empty(1, dtype=torch.int64, device=nccl)
    dist.group.WORLD._reduce_scatter_base(
        shard, torch.tensor([rank, 3 + rank], device=nccl), dist.ReduceScatterOptions()
    ).wait()
    assert shard.tolist() == [1 if rank == 0 else 7]
    with dist._coalescing_manager(device=nccl):
        values = [torch.tensor([2 * rank + number], device=nccl) for number in range(2)]
        for value in values:
            dist.all_reduce(value, op=average)
    assert [value.item() for value in values] == [1, 2]


@pytest.mark.filterwarnings("ignore:barrier")
@pytest.mark.ranks(2)
def test_a_barrier_guesses_a_device_by_rank_as_torch_does(gpus: int) -> None:
    with phalanx.stand_in_for("nccl"):
        dist.init_process_group("nccl")
        with pytest.raises(torch.AcceleratorError, match="invalid device ordinal"):
            dist.barrier(device_ids=[99])
        dist.barrier()  # nobody has called set_device() yet
        with pytest.raises(dist.DistBackendError, match="Duplicate GPU detected"):
            dist.all_reduce(torch.ones(1, device="cuda"))
        dist.destroy_process_group()


@pytest.mark.filterwarnings("ignore:barrier")
@pytest.mark.ranks(2)
def test_a_barrier_needs_as_many_devices_as_ranks() -> None:
    phalanx.virtual_devices(1, face="cuda")
    with phalanx.stand_in_for("nccl"):
        dist.init_process_group("nccl")
        with pytest.raises(dist.DistBackendError, match="Duplicate GPU detected"):
            dist.barrier()
        dist.destroy_process_group()


@pytest.mark.ranks(2)
def test_a_monitored_barrier_is_refused(nccl: torch.device) -> None:
    with pytest.raises(ValueError, match="monitored_barrier is only implemented for GLOO backend"):
        dist.monitored_barrier()
