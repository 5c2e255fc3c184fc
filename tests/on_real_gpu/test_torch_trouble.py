"""What goes wrong between ranks that share a real GPU is told to all of them, soon."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch

import phalanx
from phalanx.torch_backend.untyped import dist
from tests.checks import Stopwatch, leave_note
from tests.on_real_gpu.gpu_ranks import needs_gpu, on_gpu
from tests.run_ranks import read_notes, run_ranks

pytestmark = pytest.mark.slow


@needs_gpu
@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("count", [4, 1 << 22])
def test_a_rank_killed_in_a_collective_is_named_to_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int, is_async: bool
) -> None:
    monkeypatch.setenv("PHALANX_GRACE_S", "20")  # survivors end by themselves

    def program() -> None:
        rank = phalanx.connect().rank
        dist.init_process_group("phalanx", init_method=f"file://{tmp_path}/meeting", rank=rank, world_size=4)
        value = torch.ones(count, device="cuda")
        dist.all_reduce(value)
        if rank == 1:
            leave_note(tmp_path, 1, time.monotonic())
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            for _ in range(1000):
                work = dist.all_reduce(value, async_op=is_async)
                if is_async:
                    work.wait()
        except phalanx.PhalanxError as error:
            leave_note(tmp_path, rank, (str(error), time.monotonic()))

    with pytest.raises(phalanx.RankFailedError, match="rank 1 of 4 was killed by SIGKILL"):
        run_ranks("process", 4, program)
    told = read_notes(tmp_path, range(4))
    for rank in (0, 2, 3):
        text, heard_at = told[rank]
        assert "rank 1" in text.splitlines()[0]
        assert heard_at - told[1] < 10


@on_gpu(4, kind="process")
@pytest.mark.usefixtures("process_group")
def test_a_rank_without_memory_is_named_to_the_others(device: torch.device, rank: int, process_group: Any) -> None:
    value, watch = torch.ones(1000, device=device), Stopwatch()
    dist.all_reduce(value)
    if rank == 2:
        with pytest.raises(torch.OutOfMemoryError) as raised:
            torch.empty(1 << 50, dtype=torch.uint8, device=device)
        process_group.phalanx_group.fail(str(raised.value))
    else:
        with pytest.raises(phalanx.PhalanxError, match="rank 2"):
            dist.all_reduce(value)
    assert watch.seconds() < 10


@on_gpu(4, kind="process")
@pytest.mark.usefixtures("process_group")
def test_unequal_shapes_are_refused_on_all_ranks(device: torch.device, rank: int) -> None:
    with pytest.raises(phalanx.MismatchError, match="ranks disagree on shape"):
        dist.all_reduce(torch.ones(1000 + (rank == 3), device=device))


@on_gpu(4, kind="process")
@pytest.mark.usefixtures("process_group")
def test_a_cpu_tensor_beside_gpu_tensors_is_refused_on_all_ranks(device: torch.device, rank: int) -> None:
    with pytest.raises(phalanx.PhalanxError):
        dist.all_reduce(torch.ones(1000, device="cpu" if rank == 1 else device))


@on_gpu(2, kind="process")
@pytest.mark.usefixtures("process_group")
def test_unequal_shapes_are_told_when_the_device_is_synchronized(device: torch.device, rank: int) -> None:
    dist.all_reduce(torch.ones(1000 + rank, device=device), async_op=True)
    with pytest.raises(phalanx.MismatchError, match="ranks disagree on shape"):
        torch.cuda.synchronize()


@on_gpu(2, kind="process")
@pytest.mark.usefixtures("process_group")
def test_a_collective_in_a_graph_under_capture_is_refused(device: torch.device, rank: int) -> None:
    value = torch.ones(1000, device=device)
    dist.all_reduce(value)
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        value.add_(1)
        with pytest.raises(phalanx.UsageError, match="captur"):
            dist.all_reduce(value)


@on_gpu(2, kind="process", backend="phalanx")
def test_ranks_share_a_gpu_under_the_name_of_nccl(device: torch.device, rank: int) -> None:
    with phalanx.stand_in_for("nccl"):
        dist.init_process_group("nccl", device_id=device)
        value = torch.ones(1000, device=device)
        dist.all_reduce(value)
        assert bool((value == 2).all())
        dist.barrier()
        assert phalanx.is_stand_in()
        dist.destroy_process_group()


@on_gpu(2, kind="process", backend="phalanx")
@pytest.mark.parametrize("async_op", [False, True])
def test_an_average_of_integers_is_rounded_towards_zero_as_by_nccl(
    device: torch.device, rank: int, async_op: bool
) -> None:
    with phalanx.stand_in_for("nccl"):
        dist.init_process_group("nccl", device_id=device)
        value = torch.full((1000,), -1 - rank, device=device, dtype=torch.int32)
        work = dist.all_reduce(value, dist.ReduceOp.AVG, async_op=async_op)
        if work is not None:
            work.wait()
        assert bool((value == -1).all())
        dist.destroy_process_group()
