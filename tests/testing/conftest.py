from __future__ import annotations

import importlib

import pytest

from tests.testing.inner_runs import InnerRuns

# pytester forgets what a run in this process has imported, and torch can't be imported twice.
for name in (
    "phalanx.virtual_gpus.building",
    "phalanx.virtual_gpus.torch_cuda",
    "phalanx.virtual_gpus.set_up",
    "phalanx.groups.connect",
    "phalanx.groups.torch_network",
    "phalanx.stand_in",
    "phalanx.testing.asserts",
    "phalanx.testing.rank_groups",
    "phalanx.testing.rank_hooks",
    "phalanx.testing.world",
    "phalanx.torch_backend.creation",
):
    importlib.import_module(name)


@pytest.fixture
def inner(pytester: pytest.Pytester) -> InnerRuns:
    """Runs of pytest in a folder of this test's own."""
    return InnerRuns(pytester)


@pytest.fixture(params=["process", "thread", "pool"])
def kind(request: pytest.FixtureRequest) -> str:
    """How ranks are run."""
    chosen: str = request.param
    return chosen
