"""Run torch's own distributed tests against phalanx and report: the command `phalanx upstream`."""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from phalanx.conformance.forked_test import Outcome, run_test
from phalanx.conformance.suite import load_suite
from phalanx.errors import UsageError


@dataclass(frozen=True)
class Report:
    """All outcomes of one run."""

    mode: str
    world_size: int
    outcomes: tuple[Outcome, ...]
    seconds: float

    def with_status(self, status: str) -> list[Outcome]:
        """Return the outcomes of one kind."""
        return [outcome for outcome in self.outcomes if outcome.status == status]

    def skip_reasons(self) -> list[tuple[str, int]]:
        """Return why tests were skipped, the most frequent reason first."""
        return Counter(outcome.reason for outcome in self.with_status("skipped")).most_common()

    def summary(self) -> str:
        """Return the last line."""
        passed, skipped, failed = (len(self.with_status(status)) for status in ("passed", "skipped", "failed"))
        return (
            f"upstream {self.mode} world {self.world_size}: {passed} passed, {skipped} skipped, {failed} failed "
            f"in {self.seconds:.0f} s"
        )


def run_upstream(
    mode: str,
    world_size: int,
    *,
    names: Sequence[str] = (),
    timeout_s: float = 60.0,
    watch: Callable[[Outcome, int, int], None] = lambda *_: None,
) -> Report:
    """Run the suite, or some of its tests, one after the other.

    Args:
        mode: "plain" or "gloo", see suite.py.
        world_size: Ranks of each test.
        names: Tests to run; all when empty.
        timeout_s: How long one test may take.
        watch: Told of every outcome, with how many are done and how many there are.

    Raises:
        UsageError: There is no such mode or test.
    """
    start = time.monotonic()
    outcomes: list[Outcome] = []
    with tempfile.TemporaryDirectory(prefix="phalanx-upstream-") as folder:
        suite = load_suite(mode, world_size, Path(folder))
        known = suite.names()
        unknown = sorted(set(names) - set(known))
        if unknown:
            raise UsageError(f"the suite has no test {', '.join(unknown)}")
        chosen = list(names) or known
        for name in chosen:
            outcomes.append(run_test(suite, name, timeout_s))
            watch(outcomes[-1], len(outcomes), len(chosen))
    return Report(mode, world_size, tuple(outcomes), time.monotonic() - start)
