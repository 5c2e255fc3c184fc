"""Run torch's own distributed tests against phalanx, in one mode and on one number of ranks."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from phalanx.errors import UsageError
from phalanx_tools.conformance import mutations
from phalanx_tools.conformance.forked_test import run_test
from phalanx_tools.conformance.heavy import reason_to_leave_out, timeout_of
from phalanx_tools.conformance.modes import find_mode
from phalanx_tools.conformance.outcomes import Outcome, Report
from phalanx_tools.conformance.suite import Suite, load_suite

Watch = Callable[[Outcome, int, int], None]
DEFAULT_TIMEOUT_S = 60.0


def run_upstream(
    mode: str,
    world_size: int,
    *,
    names: Sequence[str] = (),
    timeout_s: float = DEFAULT_TIMEOUT_S,
    is_forced: bool = False,
    is_all: bool = False,
    mutation: str | None = None,
    watch: Watch = lambda *_: None,
) -> Report:
    """Run the suite, or some of its tests, one after the other.

    Args:
        mode: One of modes.MODES.
        world_size: Ranks of each test.
        names: Tests to run; all when empty.
        timeout_s: How long one test may take.
        is_forced: Run tests that upstream has switched off, and, when none is named, no others.
        is_all: Run heavy tests too, whatever they take here.
        mutation: Something to break in the engine first, see mutations.py.
        watch: Told of every outcome, with how many are done and how many there are.

    Raises:
        UsageError: There is no such mode, test or mutation.
    """
    start = time.monotonic()
    outcomes: list[Outcome] = []
    with tempfile.TemporaryDirectory(prefix="phalanx-upstream-") as folder:
        suite = load_suite(find_mode(mode), world_size, Path(folder))
        chosen = _choose(suite, names, is_forced)
        if mutation is not None:
            mutations.install(mutation)
        for name in chosen:
            outcomes.append(_run_or_leave_out(suite, name, timeout_s, is_all))
            watch(outcomes[-1], len(outcomes), len(chosen))
    return Report(mode, f"world {world_size}", tuple(outcomes), time.monotonic() - start)


def _choose(suite: Suite, names: Sequence[str], is_forced: bool) -> list[str]:
    known = suite.names()
    unknown = sorted(set(names) - set(known))
    if unknown:
        raise UsageError(f"the suite has no test {', '.join(unknown)}")
    switched_on = suite.switch_on() if is_forced else []
    return list(names) or switched_on or known


def _run_or_leave_out(suite: Suite, name: str, timeout_s: float, is_all: bool) -> Outcome:
    reason = None if is_all or suite.reason_to_skip(name) else reason_to_leave_out(suite.mode, suite.world_size, name)
    if reason is not None:
        return Outcome(name, "skipped", reason, 0.0)
    return run_test(suite, name, timeout_of(name, timeout_s))
