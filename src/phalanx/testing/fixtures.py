"""The fixtures of a test on ranks. Those in RANKS_OWN have a value only on the ranks.

Every session of pytest imports this module, so what ranks need is imported inside functions.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

from phalanx.testing.markers import owner_of

if TYPE_CHECKING:
    import torch

    from phalanx.launch.context import LaunchContext
    from phalanx.testing.plan import Plan


def _refuse(config: pytest.Config, fixture: str) -> NoReturn:
    """Fail without a traceback, which would show only this module."""
    why = "; mark the test, for example with @pytest.mark.ranks(4)"
    if owner_of(config, "ranks") == "project":
        why = (
            ", but this project declares a marker 'ranks' of its own, so phalanx leaves it alone; give that marker "
            "another name, or use phalanx.testing.ranks() in the test"
        )
    pytest.fail(f"fixture '{fixture}' of phalanx needs ranks{why}", pytrace=False)


def _context(config: pytest.Config, fixture: str) -> LaunchContext:
    from phalanx.launch.context import current_context  # as the docstring says

    context = current_context()
    if context is None:
        _refuse(config, fixture)
    return context


def _plan(request: pytest.FixtureRequest, fixture: str) -> Plan:
    from phalanx.testing.session_plans import plan_of  # as the docstring says

    plan = plan_of(request.node)
    if plan is None:
        _refuse(request.config, fixture)
    return plan


@pytest.fixture
def rank(request: pytest.FixtureRequest) -> int:
    """The number of this rank."""
    return _context(request.config, "rank").rank


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
    number = _context(request.config, "device").rank
    if plan.gpus is None:  # it is already the current device, or becomes it when CUDA is first used
        # As the docstring of the module says.
        from phalanx.testing.real_gpus import gpu_of
        from phalanx.testing.session_plans import gpus_of

        return torch.device("cuda", gpu_of(number, gpus_of(request.config)))
    chosen = torch.device("cuda", number % plan.gpus.num_devices)
    torch.cuda.set_device(chosen)
    return chosen


@pytest.fixture
def rank_tmp_path(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """The rank's own folder inside `tmp_path`, which all ranks share."""
    folder = tmp_path / f"rank-{_context(request.config, 'rank_tmp_path').rank}"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture
def virtual_gpus(request: pytest.FixtureRequest) -> tuple[torch.device, ...]:
    """The virtual GPUs of this process, set up before the test begins."""
    from phalanx.testing.session_plans import plan_of  # as the docstring of the module says

    plan = plan_of(request.node)
    if plan is None or plan.gpus is None:
        todo = "name it as an argument" if plan is None else 'mark the test with @pytest.mark.ranks(4, gpus="virtual")'
        pytest.fail(f"fixture 'virtual_gpus' of phalanx needs a test that has virtual GPUs; {todo}", pytrace=False)
    _context(request.config, "virtual_gpus")
    import torch

    return tuple(torch.device("cuda", index) for index in range(plan.gpus.num_devices))


@pytest.fixture
def _ranks_plan(request: pytest.FixtureRequest) -> Any:
    return request.param


RANKS_OWN = ("rank", "group", "process_group", "device", "rank_tmp_path", "virtual_gpus")
