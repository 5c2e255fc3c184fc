"""phalanx in the place of Gloo and of MPI, with tensors of the CPU and of virtual GPUs."""

from __future__ import annotations

from datetime import timedelta

import pytest
import torch

import phalanx
from phalanx.errors import UsageError
from phalanx.torch_backend.untyped import dist
from tests.virtual_gpus.in_child import run_script


@pytest.mark.ranks(2)
def test_gloo_serves_both_devices(gpus: int, rank: int) -> None:
    with phalanx.stand_in_for("gloo"):
        dist.init_process_group("gloo")
        assert dist.get_backend() == "gloo"
        assert "phalanx standing in for gloo" in repr(dist.group.WORLD)
        for device in ("cpu", f"cuda:{rank}", "cuda:0"):  # Gloo does not mind two ranks on one device
            value = torch.ones(3, 2, device=device).t()
            dist.all_reduce(value)
            assert value.tolist() == [[2.0] * 3] * 2
        dist.destroy_process_group()


@pytest.mark.ranks(2)
def test_gloo_works_without_virtual_devices() -> None:
    with phalanx.stand_in_for("gloo"):
        dist.init_process_group("gloo")
        value = torch.ones(2)
        dist.all_reduce(value)
        assert value.tolist() == [2.0, 2.0]
        assert phalanx.is_stand_in()
        dist.destroy_process_group()


@pytest.mark.ranks(2)
def test_gloo_refuses_what_gloo_refuses() -> None:
    with phalanx.stand_in_for("gloo"):
        dist.init_process_group("gloo")
        with pytest.raises(UsageError, match=r"Cannot use ReduceOp\.AVG with Gloo"):
            dist.all_reduce(torch.ones(2), op=dist.ReduceOp.AVG)
        with pytest.raises(UsageError, match=r"Cannot use ReduceOp\.BAND with non-integral dtype"):
            dist.all_reduce(torch.ones(2), op=dist.ReduceOp.BAND)
        dist.destroy_process_group()


@pytest.mark.ranks(2)
def test_a_monitored_barrier_names_who_is_missing(rank: int) -> None:
    with phalanx.stand_in_for("gloo"):
        dist.init_process_group("gloo")
        if rank == 0:
            with pytest.raises(RuntimeError, match="Rank 1 failed to pass monitoredBarrier"):
                dist.monitored_barrier(timeout=timedelta(seconds=0.05))
        dist.barrier()
        dist.destroy_process_group()


@pytest.mark.ranks(3)
def test_mpi_takes_ranks_from_the_launcher(gpus: int, rank: int) -> None:
    with phalanx.stand_in_for("mpi"):
        for _ in range(2):
            dist.init_process_group("mpi")
            assert (dist.get_rank(), dist.get_world_size(), dist.get_backend()) == (rank, 3, "mpi")
            value = torch.ones(2, device=f"cuda:{rank}")
            dist.all_reduce(value)
            assert value.tolist() == [3.0, 3.0]
            pair = dist.new_group([0, 2])
            if rank != 1:
                value = torch.ones(1)
                dist.all_reduce(value, group=pair)
                assert float(value) == 2.0
            dist.destroy_process_group()


@pytest.mark.slow
def test_mpi_without_a_launcher_says_what_to_do() -> None:
    program = (
        "import torch.distributed as dist, phalanx\n"
        "phalanx.stand_in_for('mpi')\n"
        "try: dist.init_process_group('mpi')\n"
        "except phalanx.UsageError as error: print(error)\n"
    )
    ended = run_script(program)
    assert "no launcher has given this process a rank" in ended.stdout, ended.stderr
    assert "phalanx run, mpiexec or torchrun" in ended.stdout
