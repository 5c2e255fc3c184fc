"""The fixtures of a test on ranks. Those in RANKS_OWN have a value only on the ranks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from phalanx.errors import UsageError
from phalanx.launch.context import LaunchContext, current_context
from phalanx.testing.plan import Plan
from phalanx.testing.real_gpus import gpu_of
from phalanx.testing.session_plans import gpus_of, plan_of

if TYPE_CHECKING:
    import torch


def _no_ranks(fixture: str) -> UsageError:
    return UsageError(f"fixture '{fixture}' needs ranks; mark the test, for example with @pytest.mark.ranks(4)")


def _context(fixture: str) -> LaunchContext:
    context = current_context()
    if context is None:
        raise _no_ranks(fixture)
    return context


def _plan(request: pytest.FixtureRequest, fixture: str) -> Plan:
    plan = plan_of(request.node)
    if plan is None:
        raise _no_ranks(fixture)
    return plan


@pytest.fixture
def rank() -> int:
    """The number of this rank."""
    return _context("rank").rank


@pytest.fixture
def world_size(request: pytest.FixtureRequest) -> int:
    """The number of ranks of the test. Fixtures that use only this run once, in pytest's process."""
    return _plan(request, "world_size").num_ranks


@pytest.fixture
def ranks_kind(request: pytest.FixtureRequest) -> str:
    """The kind of the ranks: "process", "thread" or "pool". Fixtures that use only this run once."""
    return _plan(request, "ranks_kind").kind


@pytest.fixture
def group(request: pytest.FixtureRequest) -> Iterator[Any]:
    """A new group of all ranks of the test."""
    plan = _plan(request, "group")
    from phalanx.testing.rank_groups import open_group  # imports torch: a session without ranks does without

    yield from open_group(plan)


@pytest.fixture
def process_group(request: pytest.FixtureRequest) -> Iterator[Any]:
    """The default process group of torch.distributed, for code that calls `dist.all_reduce(...)`."""
    plan = _plan(request, "process_group")
    from phalanx.testing.rank_groups import open_process_group  # imports torch, as above

    yield from open_process_group(plan)


@pytest.fixture
def device(request: pytest.FixtureRequest) -> torch.device:
    """The device of this rank: the CPU or a GPU."""
    plan = _plan(request, "device")
    import torch

    if plan.device == "cpu":
        return torch.device("cpu")
    number = _context("device").rank
    if plan.gpus is None:  # it is already the current device, or becomes it when CUDA is first used
        return torch.device("cuda", gpu_of(number, gpus_of(request.config)))
    chosen = torch.device("cuda", number % plan.gpus.num_devices)
    torch.cuda.set_device(chosen)
    return chosen


@pytest.fixture
def rank_tmp_path(tmp_path: Path) -> Path:
    """The rank's own folder inside `tmp_path`, which all ranks share."""
    folder = tmp_path / f"rank-{_context('rank_tmp_path').rank}"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture
def virtual_gpus(request: pytest.FixtureRequest) -> tuple[torch.device, ...]:
    """The virtual GPUs of this process, set up before the test begins."""
    plan = plan_of(request.node)
    if plan is None or plan.gpus is None:
        raise UsageError(
            "fixture 'virtual_gpus' needs a test that has virtual GPUs; "
            + ("name it as an argument" if plan is None else 'mark the test with @pytest.mark.ranks(4, gpus="virtual")')
        )
    _context("virtual_gpus")
    import torch

    return tuple(torch.device("cuda", index) for index in range(plan.gpus.num_devices))


RANKS_OWN = ("rank", "group", "process_group", "device", "rank_tmp_path", "virtual_gpus")
