"""Where the plugin keeps what it knows: keys of pytest's stashes, and the name of a parameter of tests."""

from __future__ import annotations

from types import ModuleType
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from phalanx.testing.plan import Defaults
    from phalanx.testing.rank_fixtures import DeferredFixture
    from phalanx.testing.real_gpus import RealGpus
    from phalanx.testing.runner import Runner
    from phalanx.testing.verdict import Verdict

PLAN = "_ranks_plan"  # the parameter with the plan, for a test that has several plans
# Of the session's config.
DEFAULTS: pytest.StashKey[Defaults] = pytest.StashKey()
GPUS: pytest.StashKey[RealGpus] = pytest.StashKey()
INI_MARKERS: pytest.StashKey[tuple[str, ...]] = pytest.StashKey()  # their declarations in the ini file
USERS: pytest.StashKey[dict[ModuleType, bool]] = pytest.StashKey()  # whether they have imported phalanx
USES: pytest.StashKey[dict[str, bool]] = pytest.StashKey()  # markers, and whether tests with them use phalanx
RUNNER: pytest.StashKey[Runner] = pytest.StashKey()
# Of a test.
DEFERRED: pytest.StashKey[list[DeferredFixture]] = pytest.StashKey()  # in the order of their set-up
VERDICT: pytest.StashKey[Verdict] = pytest.StashKey()
