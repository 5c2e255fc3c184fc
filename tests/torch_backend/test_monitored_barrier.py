"""The barrier that says who is missing, and leaves the group as it was."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import torch

from phalanx.errors import OperationTimeoutError
from phalanx.torch_backend.untyped import dist
from tests.checks import check, contains, equal, raised
from tests.torch_backend.torch_ranks import run_torch_ranks


def test_it_names_the_missing_ranks_and_the_group_stays_usable(tmp_path: Path) -> None:
    def program() -> str:
        rank = dist.get_rank()
        dist.monitored_barrier()
        told = ""
        if rank in (0, 3):
            limit = timedelta(seconds=0.3)
            error = raised(OperationTimeoutError, dist.monitored_barrier, timeout=limit, wait_all_ranks=True)
            told = str(error)
        value = torch.ones(1)
        dist.all_reduce(value)
        equal(float(value), 4.0)
        dist.monitored_barrier(timeout=timedelta(seconds=20))
        return told

    told = run_torch_ranks(tmp_path, 4, program)
    assert told[0].startswith("[Rank 0]: Ranks 1, 2 failed to pass monitoredBarrier in 300 ms")
    assert "Rank 3 successfully reached monitoredBarrier, but received errors" in told[3]


def test_the_first_missing_rank_is_enough_by_default(tmp_path: Path) -> None:
    def program() -> str:
        if dist.get_rank() != 0:
            return ""
        return str(raised(OperationTimeoutError, dist.monitored_barrier, timeout=timedelta(seconds=0.2)))

    assert "Rank 1 failed to pass monitoredBarrier" in run_torch_ranks(tmp_path, 3, program)[0]


def test_no_time_is_rank_0s_own_fault(tmp_path: Path) -> None:
    def program() -> None:
        world = dist.group.WORLD
        assert world is not None
        error = raised(OperationTimeoutError, world.monitored_barrier, timedelta(0))
        if dist.get_rank() == 0:
            contains(str(error), "Rank 0 timed out in monitoredBarrier")

    run_torch_ranks(tmp_path, 2, program)


def test_gloo_keeps_its_own(tmp_path: Path) -> None:
    def program() -> None:
        other = dist.new_group(backend="gloo")
        dist.monitored_barrier(other, timeout=timedelta(seconds=20))
        check(dist.get_backend(other) == "gloo")

    run_torch_ranks(tmp_path, 2, program)
