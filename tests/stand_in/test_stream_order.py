"""Collectives take their place among the work of a device's streams."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

import phalanx
from phalanx.errors import RaceError
from phalanx.groups import stream_order
from phalanx.groups.stream_order import PendingOperation, StreamOrder
from phalanx.torch_backend.untyped import dist


class _Diary(StreamOrder):
    """An order that writes down what it is told."""

    runs_at_once = True

    def __init__(self) -> None:
        super().__init__()
        self.entries: list[Any] = []
        self.operations: list[tuple[str, int]] = []

    def launch(
        self, reads: Sequence[torch.Tensor], writes: Sequence[torch.Tensor], *, operation: str, group_number: int
    ) -> object:
        self.operations.append((operation, group_number))
        self.entries.append((len(reads), len(writes)))
        return len(self.entries)

    def wait(self, position: object) -> None:
        self.entries.append(("waited", position))

    def started(self, operation: PendingOperation, *, owner: object) -> None:
        self.entries.append("pending")


@pytest.mark.ranks(2)
def test_a_device_learns_what_is_read_and_written(nccl: torch.device, rank: int) -> None:
    value, both = torch.ones(2, device=nccl), [torch.ones(2, device=nccl) for _ in range(2)]
    dist.all_reduce(value)
    stream_order.orders("cuda", diary := _Diary())
    calls: list[tuple[Any, tuple[int, int]]] = [
        (lambda: dist.all_reduce(value), (1, 1)),
        (lambda: dist.all_gather(both, value), (1, 2)),
        (lambda: dist.broadcast(value, 0), (1, 0) if rank == 0 else (0, 1)),
        (lambda: dist.reduce(value, 0), (1, 1) if rank == 0 else (1, 0)),
        (lambda: dist.scatter(value, both if rank == 0 else None), (2, 1) if rank == 0 else (0, 1)),
        (lambda: dist.gather(value, both if rank == 0 else None), (1, 2) if rank == 0 else (1, 0)),
        (lambda: dist.send(value, 1) if rank == 0 else dist.recv(value, 0), (1, 0) if rank == 0 else (0, 1)),
    ]
    for call, effects in calls:
        diary.entries.clear()
        call()
        assert diary.entries == [effects, ("waited", 1)]
    names = [name for name, _ in diary.operations]
    message = "send" if rank == 0 else "recv"
    assert names == ["all_reduce", "all_gather", "broadcast", "reduce", "scatter", "gather", message]
    assert len({group_number for _, group_number in diary.operations}) == 1
    diary.entries.clear()
    work = dist.all_reduce(value, async_op=True)
    assert diary.entries == [(1, 1), "pending"]
    work.wait()
    assert diary.entries == [(1, 1), "pending", ("waited", 1)]


@pytest.fixture
def watched(rank: int) -> torch.device:
    """A GPU of this rank in a process that looks for races, with a default group."""
    phalanx.virtual_devices(2, face="cuda", races="raise")
    phalanx.stand_in_for("nccl")
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl")
    return torch.device("cuda", rank)


@pytest.mark.ranks(2)
def test_touching_a_tensor_before_its_collective_is_waited_for_is_a_race(watched: torch.device) -> None:
    value = torch.ones(100, device=watched)
    work = dist.all_reduce(value, async_op=True)
    with pytest.raises(RaceError, match=r"test_stream_order\.py"):
        value.add_(1)
    work.wait()
    dist.destroy_process_group()


@pytest.mark.ranks(2)
def test_a_collective_that_is_waited_for_is_no_race(watched: torch.device) -> None:
    value, stream = torch.ones(100, device=watched), torch.cuda.Stream()
    dist.all_reduce(value, async_op=True).wait()
    value.add_(1)
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        dist.all_reduce(value)
    torch.cuda.current_stream().wait_stream(stream)
    assert float(value[0]) == 6.0
    dist.destroy_process_group()


@pytest.mark.slow
@pytest.mark.ranks(2)
def test_the_profiler_learns_sizes_and_ranks(nccl: torch.device) -> None:
    value = torch.ones(100, device=nccl)
    dist.all_reduce(value)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        dist.all_reduce(value, async_op=True).wait()
    names = [event.name for event in profile.events() or ()]
    assert names.count("record_param_comms") == 2  # the collective, and the wait for it
    assert "nccl:all_reduce" in names


@pytest.mark.ranks(2, gpus="virtual", races="raise")
def test_who_has_seen_the_end_may_use_the_result(process_group: Any, device: torch.device) -> None:
    for name in ("is_completed", "is_success"):
        value = torch.ones(8, device=device)
        work = dist.all_reduce(value, async_op=True)
        while not getattr(work, name)():
            pass
        assert float(value.sum()) == 16.0


@pytest.mark.ranks(2, gpus="virtual", races="raise")
def test_a_barrier_holds_the_host(process_group: Any, device: torch.device) -> None:
    for is_async in (False, True):
        there, here = torch.ones(4096, device=device), torch.empty(4096, pin_memory=True)
        here.copy_(there, non_blocking=True)
        work = dist.barrier(async_op=is_async, device_ids=[device.index])
        if work is not None:
            work.wait()
        assert float(here.sum()) == 4096.0
        torch.cuda.synchronize()


@pytest.mark.ranks(2)
def test_groups_are_told_apart_by_running_numbers(nccl: torch.device) -> None:
    groups = [dist.new_group() for _ in range(3)]
    stream_order.orders("cuda", diary := _Diary())
    for group in groups:
        dist.all_reduce(torch.ones(1, device=nccl), group=group)
    numbers = [group_number for _, group_number in diary.operations]
    assert numbers == [numbers[0], numbers[0] + 1, numbers[0] + 2]
    assert numbers[0] < 100
