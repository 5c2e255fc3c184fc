"""The fixtures of a test on ranks. Those marked here as the ranks' own have a value on the ranks only."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from phalanx.errors import UsageError
from phalanx.launch.context import LaunchContext, current_context
from phalanx.testing.plan import Plan
from phalanx.testing.real_gpus import gpu_of

if TYPE_CHECKING:
    import torch


def _no_ranks(fixture: str) -> UsageError:
    return UsageError(f"fixture '{fixture}' needs ranks; mark the test with @pytest.mark.ranks(4), say")


def _context(fixture: str) -> LaunchContext:
    context = current_context()
    if context is None:
        raise _no_ranks(fixture)
    return context


def _plan(request: pytest.FixtureRequest, fixture: str) -> Plan:
    from phalanx.testing.plugin import plan_of

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
    """How many ranks the test has; known everywhere, so fixtures that need only this run once."""
    return _plan(request, "world_size").num_ranks


@pytest.fixture
def ranks_kind(request: pytest.FixtureRequest) -> str:
    """What the ranks of the test are: "process", "thread" or "pool"; known everywhere."""
    return _plan(request, "ranks_kind").kind


@pytest.fixture
def group(request: pytest.FixtureRequest) -> Iterator[Any]:
    """The group of all ranks of the test, fresh for it."""
    plan = _plan(request, "group")
    from phalanx.testing.rank_groups import open_group

    yield from open_group(plan)


@pytest.fixture
def process_group(request: pytest.FixtureRequest) -> Iterator[Any]:
    """torch.distributed's default process group of all ranks: for code that calls `dist.all_reduce(...)`."""
    plan = _plan(request, "process_group")
    from phalanx.testing.rank_groups import open_process_group

    yield from open_process_group(plan)


@pytest.fixture
def device(request: pytest.FixtureRequest) -> torch.device:
    """Where this rank's tensors belong."""
    plan = _plan(request, "device")
    import torch

    if plan.device == "cpu":
        return torch.device("cpu")
    number = _context("device").rank
    if plan.gpus is None:  # it is the current one already, or will be when CUDA is first used
        from phalanx.testing.plugin import runner_of

        return torch.device("cuda", gpu_of(number, runner_of(request.node).gpus()))
    chosen = torch.device("cuda", number % plan.gpus.num_devices)
    torch.cuda.set_device(chosen)
    return chosen


@pytest.fixture
def rank_tmp_path(tmp_path: Path) -> Path:
    """A folder of this rank's own, inside `tmp_path`, which all ranks share."""
    folder = tmp_path / f"rank-{_context('rank_tmp_path').rank}"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture
def virtual_gpus(request: pytest.FixtureRequest) -> tuple[torch.device, ...]:
    """The virtual GPUs of this process, set up before the test begins."""
    from phalanx.testing.plugin import plan_of

    plan = plan_of(request.node)
    if plan is None or plan.gpus is None:
        raise UsageError(
            "fixture 'virtual_gpus' is for tests that have virtual GPUs; "
            + ("name it as an argument" if plan is None else 'mark the test with @pytest.mark.ranks(4, gpus="virtual")')
        )
    _context("virtual_gpus")
    import torch

    return tuple(torch.device("cuda", index) for index in range(plan.gpus.num_devices))


RANKS_OWN = ("rank", "group", "process_group", "device", "rank_tmp_path", "virtual_gpus")
