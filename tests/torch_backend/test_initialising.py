"""Every way torch has to make, find and end a group."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch

from phalanx.errors import AbortedError, ClosedError, OperationTimeoutError, UsageError
from phalanx.launch.context import current_context
from phalanx.torch_backend.untyped import dist
from tests.checks import Stopwatch, check, contains, equal, raised
from tests.run_ranks import run_ranks
from tests.torch_backend.torch_ranks import run_torch_ranks


def _place() -> tuple[int, int]:
    context = current_context()
    assert context is not None
    return context.rank, context.size


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


def test_importing_torch_loads_none_of_it() -> None:
    program = (
        "import sys, torch\n"
        "print(sorted(m for m in sys.modules if m.startswith('phalanx')), 'torch._dynamo' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "['phalanx', 'phalanx.torch_backend', 'phalanx.torch_backend.autoload'] False"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.mark.parametrize("method", ["env", "tcp", "file", "store"])
def test_every_init_method(method: str, tmp_path: Path) -> None:
    port = _free_port()

    def program() -> float:
        rank, size = _place()
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(size))
        ways: dict[str, dict[str, Any]] = {
            "env": {"init_method": "env://"},
            "tcp": {"init_method": f"tcp://127.0.0.1:{port}", "rank": rank, "world_size": size},
            "file": {"init_method": f"file://{tmp_path}/store", "rank": rank, "world_size": size},
            "store": {"store": dist.FileStore(f"{tmp_path}/other", size), "rank": rank, "world_size": size},
        }
        dist.init_process_group("phalanx", **ways[method])
        total = _sum_of_ranks()
        dist.destroy_process_group()
        return total

    assert run_ranks("process", 2, program) == [3.0, 3.0]


@pytest.mark.parametrize("name", ["phalanx", "PHALANX", "cpu:phalanx"])
def test_names_of_the_backend(name: str, tmp_path: Path) -> None:
    def program() -> tuple[str, float]:
        return dist.get_backend(), _sum_of_ranks()

    assert {total for _, total in run_torch_ranks(tmp_path, 2, program, backend=name)} == {3.0}


def test_a_process_can_initialise_again_with_the_same_store(tmp_path: Path) -> None:
    def program() -> list[float]:
        rank, size = _place()
        store = dist.FileStore(f"{tmp_path}/store", size)
        totals = []
        for _ in range(3):
            dist.init_process_group("phalanx", store=store, rank=rank, world_size=size)
            totals.append(_sum_of_ranks())
            dist.destroy_process_group()
        return totals

    assert run_ranks("process", 3, program) == [[6.0] * 3] * 3


def test_subgroups_of_every_kind(tmp_path: Path) -> None:
    def program() -> None:
        rank = dist.get_rank()
        if rank < 2:  # first of all: torch derives the name from how many groups a rank is in
            alone = dist.new_group([0, 1], use_local_synchronization=True)
            dist.barrier(alone)
        pair = dist.new_group([1, 3])
        if rank in (1, 3):
            equal((dist.get_rank(pair), dist.get_world_size(pair)), ([1, 3].index(rank), 2))
            value = torch.tensor([float(rank)])
            dist.all_reduce(value, group=pair)
            equal(float(value), 4.0)
            value = torch.tensor([float(rank)])
            dist.broadcast(value, src=3, group=pair)  # global ranks
            equal(float(value), 3.0)
        else:
            check(pair is dist.GroupMember.NON_GROUP_MEMBER)
            equal(dist.get_rank(pair), -1)
        mine, groups = dist.new_subgroups(2)
        equal((len(groups), dist.get_world_size(mine)), (2, 2))
        mine, _ = dist.new_subgroups_by_enumeration([[0, 2], [1, 3]])
        value = torch.tensor([float(rank)])
        dist.all_reduce(value, group=mine)
        equal(float(value), 2.0 if rank % 2 == 0 else 4.0)

    run_torch_ranks(tmp_path, 4, program)


def test_split_keeps_ascending_order_and_names(tmp_path: Path) -> None:
    def program() -> None:
        world: Any = dist.group.WORLD
        part = world.split_group([2, 0], timeout=timedelta(seconds=7), group_name="even")
        if dist.get_rank() == 1:
            check(part is None)
            return
        equal((part.rank(), part.size(), part.group_name), ([0, None, 1][dist.get_rank()], 2, "even"))
        equal(part.options._timeout, timedelta(seconds=7))
        value = torch.ones(2)
        part.allreduce(value).wait()
        equal(value.tolist(), [2.0, 2.0])

    run_torch_ranks(tmp_path, 3, program)


def test_split_refuses_ranks_outside(tmp_path: Path) -> None:
    def program() -> None:
        world: Any = dist.group.WORLD
        error = raised(UsageError, world.split_group, [0, 5])
        contains(str(error), "rank 5 is outside")

    run_torch_ranks(tmp_path, 2, program)


def test_two_groups_merge_through_a_store(tmp_path: Path) -> None:
    def program() -> list[float]:
        world: Any = dist.group.WORLD
        rank = dist.get_rank()
        half = world.split_group([0, 1]) if rank < 2 else world.split_group([2, 3])
        store = dist.FileStore(f"{tmp_path}/merge", -1)
        merged = half.merge_remote_group(store, 4, timedelta(seconds=20), "both")
        equal((merged.size(), merged.rank(), merged.group_name), (4, rank, "both"))
        value = torch.tensor([float(rank)])
        merged.allreduce(value).wait()
        return value.tolist()

    assert run_torch_ranks(tmp_path, 4, program) == [[6.0]] * 4


def test_the_dist2_api(tmp_path: Path) -> None:
    port = _free_port()

    def program() -> None:
        from torch.distributed import _dist2

        from phalanx.torch_backend.autoload import register_for_dist2

        rank, size = _place()
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(size))
        register_for_dist2()
        group: Any = _dist2.new_group("phalanx", timedelta(seconds=30), "cpu")
        short = timedelta(seconds=20)
        value = torch.ones(4) * (rank + 1)
        check(group.allreduce(value, timeout=short).wait())
        equal(value.tolist(), [3.0] * 4)
        group.broadcast(value.fill_(rank), root=1, timeout=short).wait()
        equal(value.tolist(), [1.0] * 4)
        outputs = [torch.zeros(2) for _ in range(size)]
        group.allgather(outputs, torch.full((2,), float(rank)), timeout=short).wait()
        equal([float(output[0]) for output in outputs], [0.0, 1.0])
        gathered = [torch.zeros(2) for _ in range(size)] if rank == 0 else []
        group.gather(gathered, torch.full((2,), float(rank)), root=0, timeout=short).wait()
        equal([float(output[1]) for output in gathered], [0.0, 1.0] if rank == 0 else [])
        output = torch.zeros(2)
        parts = [torch.full((2,), float(part)) for part in range(size)] if rank == 0 else []
        group.scatter(output, parts, root=0, timeout=short).wait()
        equal(output.tolist(), [float(rank)] * 2)
        value = torch.ones(2)
        group.reduce(value, root=0, op=dist.ReduceOp.SUM, timeout=short).wait()
        equal(float(value[0]), 2.0 if rank == 0 else 1.0)
        group.reduce_scatter(output, [torch.full((2,), part + 1.0) for part in range(size)],
                             op=dist.ReduceOp.MAX, timeout=short).wait()  # fmt: skip
        equal(output.tolist(), [rank + 1.0] * 2)
        given, taken = torch.arange(4.0) + 10 * rank, torch.zeros(4)
        group.all_to_all_single(taken, given, [2, 2], [2, 2], timeout=short).wait()
        equal(taken.tolist(), [[0.0, 1, 10, 11], [2, 3, 12, 13]][rank])
        group.barrier(timeout=short).wait()
        with _dist2.process_group(group):
            check(_dist2.current_process_group() is group)
        group.shutdown()

    run_ranks("process", 2, program)


def test_a_receive_that_nobody_serves_does_not_hold_up_the_end(tmp_path: Path) -> None:
    def program() -> float:
        watch = Stopwatch()
        work = dist.irecv(torch.zeros(1), src=1 - dist.get_rank())
        dist.destroy_process_group()
        raised(AbortedError, work.wait)
        return watch.seconds()

    assert max(run_torch_ranks(tmp_path, 2, program)) < 5


def test_use_after_destroy_is_an_error(tmp_path: Path) -> None:
    def program() -> None:
        world: Any = dist.group.WORLD
        dist.destroy_process_group()
        error = raised(ClosedError, world.allreduce, [torch.ones(1)])
        contains(str(error), "closed")

    run_torch_ranks(tmp_path, 2, program)


def test_abort_frees_those_who_wait(tmp_path: Path) -> None:
    def program() -> str:
        world: Any = dist.group.WORLD
        if dist.get_rank() == 1:
            world.abort()
            return ""
        error = raised(AbortedError, dist.all_reduce, torch.ones(4))
        return str(error)

    told = run_torch_ranks(tmp_path, 2, program)[0]
    assert "abort" in told
    assert "rank 1" in told


def test_a_missing_rank_is_noticed_when_the_group_is_made(tmp_path: Path) -> None:
    def program() -> str:
        rank, size = _place()
        if rank == 0:
            return ""
        init: dict[str, Any] = {"init_method": f"file://{tmp_path}/store", "rank": rank, "world_size": size}
        limit = timedelta(seconds=1)
        error = raised(OperationTimeoutError, lambda: dist.init_process_group("phalanx", timeout=limit, **init))
        return str(error)

    assert "did not come" in run_ranks("process", 2, program)[1]


def test_options_are_refused(tmp_path: Path) -> None:
    def program() -> None:
        rank, size = _place()
        options = dist.distributed_c10d.Backend  # anything
        error = raised(
            UsageError,
            lambda: dist.init_process_group(
                "phalanx",
                init_method=f"file://{tmp_path}/store",
                rank=rank,
                world_size=size,
                pg_options=options,
            ),
        )
        contains(str(error), "phalanx has no pg_options")

    run_ranks("process", 1, program)


def test_each_device_goes_to_its_own_engine(tmp_path: Path) -> None:
    """On a machine without a GPU: phalanx for "cuda", Gloo for the CPU."""

    def program() -> tuple[float, str]:
        world: Any = dist.group.WORLD
        total = _sum_of_ranks()
        return total, type(world._get_backend(torch.device("cpu"))).__name__

    assert run_torch_ranks(tmp_path, 2, program, backend="cpu:gloo,cuda:phalanx") == [(3.0, "ProcessGroupGloo")] * 2
