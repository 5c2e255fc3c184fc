"""Every way torch has to make, find and end a group."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch

import phalanx
from phalanx.errors import AbortedError, ClosedError, OperationTimeoutError, PeerLeftError, UsageError
from phalanx.torch_backend.untyped import dist
from tests.checks import Stopwatch


def _sum_of_ranks() -> float:
    value = torch.tensor([float(dist.get_rank() + 1)])
    dist.all_reduce(value)
    return float(value)


def test_a_program_that_never_imports_phalanx_gets_it_by_name(tmp_path: Path) -> None:
    program = (
        "import sys, torch, torch.distributed as dist\n"
        f"dist.init_process_group('phalanx', init_method='file://{tmp_path}/store', rank=0, world_size=1)\n"
        "t = torch.ones(3); dist.all_reduce(t); print(dist.get_backend(), t.tolist())\n"
        "dist.destroy_process_group()\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "phalanx [1.0, 1.0, 1.0]"


def test_importing_torch_loads_next_to_nothing_of_it() -> None:
    program = (
        "import sys, torch\n"
        "print(*sorted(m for m in sys.modules if m.startswith('phalanx')), 'torch._dynamo' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    loaded = ["autoload", "errors", "gpu_models", "patches", "settings", "torch_backend", "torch_backend.autoload"]
    assert done.stdout.split() == ["phalanx", *(f"phalanx.{name}" for name in loaded), "False"]


def _initialise(rank: int, world_size: int, folder: Path, backend: str = "phalanx", **options: Any) -> None:
    place = {"init_method": f"file://{folder}/store", "rank": rank, "world_size": world_size}
    dist.init_process_group(backend, **place, **options)


@pytest.mark.parametrize("backend", ["phalanx", "gloo"])
def test_ranks_of_spawn_find_each_other_without_arguments(backend: str) -> None:
    def program() -> tuple[list[float], str]:
        sums, world = [], phalanx.connect()
        for _ in range(2):
            dist.init_process_group(backend)
            sums.append(_sum_of_ranks())
            dist.destroy_process_group()
            gc.collect()
            world.barrier()  # rank 0 keeps the store: nobody may come back to it before it is gone
        return sums, os.environ["LOCAL_RANK"]

    assert phalanx.spawn(program, ranks=3, timeout_s=60) == [([6.0, 6.0], str(rank)) for rank in range(3)]


def test_spawn_makes_a_world_of_its_own_inside_another_launcher_s(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank of torchrun that starts ranks itself: its own place and its agent's store are not theirs."""
    outer = {"RANK": "5", "WORLD_SIZE": "6", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "192.0.2.1"}
    elastic = {"MASTER_PORT": "1", "TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RUN_ID": "outer"}
    for name, value in {**outer, **elastic}.items():
        monkeypatch.setenv(name, value)

    def program() -> float:
        dist.init_process_group("phalanx")
        return _sum_of_ranks()

    assert phalanx.spawn(program, ranks=2, timeout_s=60) == [3.0, 3.0]
    assert {name: os.environ[name] for name in outer} == outer


def test_worlds_of_two_spawns_at_once_do_not_meet() -> None:
    def program() -> float:
        dist.init_process_group("phalanx")
        return _sum_of_ranks()

    with ThreadPoolExecutor() as pool:
        worlds = [pool.submit(phalanx.spawn, program, ranks=ranks, timeout_s=60) for ranks in (2, 3)]
    assert [world.result() for world in worlds] == [[3.0] * 2, [6.0] * 3]


@pytest.mark.ranks(2)
@pytest.mark.parametrize("method", ["env", "tcp", "file", "store"])
def test_every_init_method(method: str, rank: int, world_size: int, tmp_path: Path) -> None:
    place = {"rank": rank, "world_size": world_size}
    ways: dict[str, dict[str, Any]] = {
        "env": {"init_method": "env://"},
        "tcp": {"init_method": f"tcp://127.0.0.1:{os.environ['MASTER_PORT']}", **place},
        "file": {"init_method": f"file://{tmp_path}/store", **place},
        "store": {"store": dist.FileStore(f"{tmp_path}/other", world_size), **place},
    }
    dist.init_process_group("phalanx", **ways[method])
    assert _sum_of_ranks() == 3.0
    dist.destroy_process_group()


@pytest.mark.ranks(2)
@pytest.mark.parametrize("name", ["phalanx", "PHALANX", "cpu:phalanx"])
def test_names_of_the_backend(name: str, rank: int, world_size: int, tmp_path: Path) -> None:
    _initialise(rank, world_size, tmp_path, name)
    assert _sum_of_ranks() == 3.0
    assert type(dist.group.WORLD).__name__ == "PhalanxProcessGroup"
    dist.destroy_process_group()


@pytest.mark.ranks(3)
def test_a_process_can_initialise_again_with_the_same_store(rank: int, world_size: int, tmp_path: Path) -> None:
    store = dist.FileStore(f"{tmp_path}/store", world_size)
    for _ in range(3):
        dist.init_process_group("phalanx", store=store, rank=rank, world_size=world_size)
        assert _sum_of_ranks() == 6.0
        dist.destroy_process_group()


@pytest.mark.ranks(4)
@pytest.mark.usefixtures("process_group")
def test_subgroups_of_every_kind(rank: int) -> None:
    if rank < 2:  # first of all: torch derives the name from how many groups a rank is in
        alone = dist.new_group([0, 1], use_local_synchronization=True)
        dist.barrier(alone)
    pair = dist.new_group([1, 3])
    if rank in (1, 3):
        assert (dist.get_rank(pair), dist.get_world_size(pair)) == ([1, 3].index(rank), 2)
        value = torch.tensor([float(rank)])
        dist.all_reduce(value, group=pair)
        assert float(value) == 4.0
        value = torch.tensor([float(rank)])
        dist.broadcast(value, src=3, group=pair)  # global ranks
        assert float(value) == 3.0
    else:
        assert pair is dist.GroupMember.NON_GROUP_MEMBER
        assert dist.get_rank(pair) == -1
    mine, groups = dist.new_subgroups(2)
    assert (len(groups), dist.get_world_size(mine)) == (2, 2)
    mine, _ = dist.new_subgroups_by_enumeration([[0, 2], [1, 3]])
    value = torch.tensor([float(rank)])
    dist.all_reduce(value, group=mine)
    assert float(value) == (2.0 if rank % 2 == 0 else 4.0)


@pytest.mark.ranks(3)
def test_split_keeps_ascending_order_and_names(process_group: Any, rank: int) -> None:
    part = process_group.split_group([2, 0], timeout=timedelta(seconds=7), group_name="even")
    if rank == 1:
        assert part is None
        return
    assert (part.rank(), part.size(), part.group_name) == ([0, None, 1][rank], 2, "even")
    assert part.options._timeout == timedelta(seconds=7)
    value = torch.ones(2)
    part.allreduce(value).wait()
    assert value.tolist() == [2.0, 2.0]


@pytest.mark.ranks(2)
def test_split_refuses_ranks_outside(process_group: Any) -> None:
    with pytest.raises(UsageError, match="rank 5 is outside"):
        process_group.split_group([0, 5])


@pytest.mark.ranks(4)
def test_two_groups_merge_through_a_store(process_group: Any, rank: int, tmp_path: Path) -> None:
    half = process_group.split_group([0, 1]) if rank < 2 else process_group.split_group([2, 3])
    store = dist.FileStore(f"{tmp_path}/merge", -1)
    merged = half.merge_remote_group(store, 4, timedelta(seconds=20), "both")
    assert (merged.size(), merged.rank(), merged.group_name) == (4, rank, "both")
    value = torch.tensor([float(rank)])
    merged.allreduce(value).wait()
    assert value.tolist() == [6.0]


@pytest.mark.ranks(2)
def test_the_dist2_api(rank: int, world_size: int) -> None:
    from torch.distributed import _dist2

    from phalanx.torch_backend.autoload import register_for_dist2

    register_for_dist2()
    group: Any = _dist2.new_group("phalanx", timedelta(seconds=30), "cpu")
    short = timedelta(seconds=20)
    value = torch.ones(4) * (rank + 1)
    assert group.allreduce(value, timeout=short).wait()
    assert value.tolist() == [3.0] * 4
    group.broadcast(value.fill_(rank), root=1, timeout=short).wait()
    assert value.tolist() == [1.0] * 4
    outputs = [torch.zeros(2) for _ in range(world_size)]
    group.allgather(outputs, torch.full((2,), float(rank)), timeout=short).wait()
    assert [float(output[0]) for output in outputs] == [0.0, 1.0]
    gathered = [torch.zeros(2) for _ in range(world_size)] if rank == 0 else []
    group.gather(gathered, torch.full((2,), float(rank)), root=0, timeout=short).wait()
    assert [float(output[1]) for output in gathered] == ([0.0, 1.0] if rank == 0 else [])
    output = torch.zeros(2)
    parts = [torch.full((2,), float(part)) for part in range(world_size)] if rank == 0 else []
    group.scatter(output, parts, root=0, timeout=short).wait()
    assert output.tolist() == [float(rank)] * 2
    value = torch.ones(2)
    group.reduce(value, root=0, op=dist.ReduceOp.SUM, timeout=short).wait()
    assert float(value[0]) == (2.0 if rank == 0 else 1.0)
    group.reduce_scatter(output, [torch.full((2,), part + 1.0) for part in range(world_size)],
                         op=dist.ReduceOp.MAX, timeout=short).wait()  # fmt: skip
    assert output.tolist() == [rank + 1.0] * 2
    given, taken = torch.arange(4.0) + 10 * rank, torch.zeros(4)
    group.all_to_all_single(taken, given, [2, 2], [2, 2], timeout=short).wait()
    assert taken.tolist() == [[0.0, 1, 10, 11], [2, 3, 12, 13]][rank]
    group.barrier(timeout=short).wait()
    with _dist2.process_group(group):
        assert _dist2.current_process_group() is group
    group.shutdown()


@pytest.mark.ranks(2)
def test_a_receive_that_nobody_serves_does_not_hold_up_the_end(process_group: Any, rank: int) -> None:
    watch = Stopwatch()
    work = dist.irecv(torch.zeros(1), src=1 - rank)
    dist.destroy_process_group()
    with pytest.raises((AbortedError, PeerLeftError)):  # by this rank's end, or by the other's if that came first
        work.wait()
    assert watch.seconds() < 20


@pytest.mark.ranks(2)
def test_use_after_destroy_is_an_error(process_group: Any) -> None:
    dist.destroy_process_group()
    with pytest.raises(ClosedError, match="closed"):
        process_group.allreduce([torch.ones(1)])


@pytest.mark.ranks(2)
def test_abort_frees_those_who_wait(process_group: Any, rank: int) -> None:
    if rank == 1:
        process_group.abort()
    else:
        with pytest.raises(AbortedError, match="abort") as caught:
            dist.all_reduce(torch.ones(4))
        assert "rank 1" in str(caught.value)


@pytest.mark.ranks(2)
def test_a_missing_rank_is_noticed_when_the_group_is_made(rank: int, world_size: int, tmp_path: Path) -> None:
    if rank == 1:
        with pytest.raises(OperationTimeoutError, match="did not come"):
            _initialise(rank, world_size, tmp_path, timeout=timedelta(seconds=1))


@pytest.mark.ranks(1)
def test_options_are_refused(rank: int, world_size: int, tmp_path: Path) -> None:
    options = dist.distributed_c10d.Backend  # anything
    with pytest.raises(UsageError, match="phalanx has no pg_options"):
        _initialise(rank, world_size, tmp_path, pg_options=options)


@pytest.mark.ranks(2)
def test_each_device_goes_to_its_own_engine(rank: int, world_size: int, tmp_path: Path) -> None:
    """On a machine without a GPU: phalanx for "cuda", Gloo for the CPU."""
    _initialise(rank, world_size, tmp_path, "cpu:gloo,cuda:phalanx")
    assert _sum_of_ranks() == 3.0
    world: Any = dist.group.WORLD
    assert type(world._get_backend(torch.device("cpu"))).__name__ == "ProcessGroupGloo"
    dist.destroy_process_group()
