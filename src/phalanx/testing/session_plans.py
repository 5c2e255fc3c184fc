"""What a pytest session knows about its tests on ranks: the plan of each test, and the GPUs of the machine."""

from __future__ import annotations

from typing import Any

import pytest

from phalanx.errors import UsageError
from phalanx.testing.plan import Defaults, Plan, read_gpus_marker, read_marker
from phalanx.testing.real_gpus import RealGpus, look_for_gpus

PLAN = "_ranks_plan"  # the parameter with the plan, for a test that has several plans
DEFAULTS = pytest.StashKey[Defaults]()
_GPUS = pytest.StashKey[RealGpus]()
_FIXTURES = "phalanx.testing.fixtures"


def gpus_of(config: pytest.Config) -> RealGpus:
    """Return the real GPUs of this machine; it looks for them once."""
    if _GPUS not in config.stash:
        config.stash[_GPUS] = look_for_gpus()
    return config.stash[_GPUS]


def plan_of(item: Any) -> Plan | None:
    """Return the plan of a test; None if it does not run on ranks.

    Raises:
        UsageError: Its marker makes no sense.
    """
    marker = item.get_closest_marker("ranks")
    defaults = item.config.stash[DEFAULTS]
    own = item.get_closest_marker("virtual_gpus")
    if marker is None:
        if own is None:
            return read_gpus_marker((), {}, defaults) if _asks_for_gpus(item) else None
        return read_gpus_marker(own.args, own.kwargs, defaults)
    if own is not None:
        raise UsageError(
            "@pytest.mark.virtual_gpus is for tests of one process; on ranks give the number with "
            '@pytest.mark.ranks(2, gpus="virtual:4")'
        )
    callspec = getattr(item, "callspec", None)
    if callspec is not None and PLAN in callspec.params:
        plan: Plan = callspec.params[PLAN]
        return plan
    plans = read_marker(marker.args, marker.kwargs, defaults)
    if len(plans) > 1:  # the mark was added too late to make several tests
        raise UsageError(
            "@pytest.mark.ranks with several numbers or kinds belongs on a function, class or module; on a parameter, "
            "or added later, give one of each"
        )
    return plans[0]


def _asks_for_gpus(item: Any) -> bool:
    """Tell whether a test, or a fixture of it, names our fixture `virtual_gpus`, and not another of that name."""
    info = getattr(item, "_fixtureinfo", None)
    definitions = info.name2fixturedefs.get("virtual_gpus", ()) if info is not None else ()
    return any(getattr(each.func, "__module__", "") == _FIXTURES for each in definitions[-1:])
