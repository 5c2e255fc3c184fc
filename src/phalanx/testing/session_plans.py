"""What a pytest session knows about its tests on ranks: the plan of each test, and the GPUs of the machine."""

from __future__ import annotations

from typing import Any

import pytest

from phalanx.errors import UsageError
from phalanx.testing.markers import SWITCH_OFF, asks_for_virtual_gpus, find_mark, find_unclear_marks
from phalanx.testing.plan import Defaults, Plan, read_gpus_marker, read_marker
from phalanx.testing.real_gpus import RealGpus, look_for_gpus
from phalanx.testing.stash_keys import DEFAULTS, GPUS, PLAN


def gpus_of(config: pytest.Config) -> RealGpus:
    """Return the real GPUs of this machine; it looks for them once."""
    if GPUS not in config.stash:
        config.stash[GPUS] = look_for_gpus()
    return config.stash[GPUS]


def defaults_of(config: pytest.Config) -> Defaults:
    """Return the defaults of the session; it reads them once.

    Raises:
        pytest.UsageError: An option or the ini file says something that makes no sense.
    """
    if DEFAULTS not in config.stash:
        config.stash[DEFAULTS] = _read_defaults(config)
    return config.stash[DEFAULTS]


def _read_defaults(config: pytest.Config) -> Defaults:
    usual = Defaults()
    kind = config.getoption("--ranks-kind") or config.getini("ranks_kind") or usual.kind
    backend = config.getoption("--ranks-backend") or config.getini("ranks_backend") or usual.backend
    given = config.getoption("--ranks-timeout")
    timeout = (config.getini("ranks_timeout") or usual.timeout_s) if given is None else given
    try:
        (plan,) = read_marker((1,), {"kind": kind, "backend": backend, "timeout": float(timeout)}, usual)
    except (UsageError, ValueError) as error:
        raise pytest.UsageError(f"ranks_kind, ranks_backend, ranks_timeout: {error}; {SWITCH_OFF}") from None
    return Defaults(plan.kind, plan.timeout_s, plan.backend)


def check_owner(item: Any) -> None:
    """Check that no mark of a test may be ours as well as the project's.

    Raises:
        UsageError: One may be. The test would otherwise run on no ranks, and perhaps pass.
    """
    for mark in find_unclear_marks(item):
        if _is_readable(mark, defaults_of(item.config)):
            raise UsageError(
                f"@pytest.mark.{mark.name} may mean phalanx's marker or one of this project: the configuration of "
                f"pytest declares '{mark.name}' without a word of phalanx, and some tests with it use phalanx, but "
                "this one does not\n"
                f'  do       write "{mark.name}(n): ... (phalanx)" there, or ranks_marker = project if phalanx should '
                "leave this marker alone"
            )


def _is_readable(mark: pytest.Mark, defaults: Defaults) -> bool:
    read = read_marker if mark.name == "ranks" else read_gpus_marker
    try:
        read(mark.args, mark.kwargs, defaults)
    except UsageError:
        return False
    return True


def plan_of(item: Any) -> Plan | None:
    """Return the plan of a test; None if it does not run on ranks.

    Raises:
        UsageError: Its marker makes no sense.
    """
    marker, own = find_mark(item, "ranks"), find_mark(item, "virtual_gpus")
    defaults = defaults_of(item.config)
    if marker is None:
        if own is None:
            return read_gpus_marker((), {}, defaults) if asks_for_virtual_gpus(item) else None
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
