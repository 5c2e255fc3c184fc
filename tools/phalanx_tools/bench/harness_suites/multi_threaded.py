"""torch's MultiThreadedTestCase: ranks are threads, collectives run in rank 0's."""

from __future__ import annotations

from typing import Any

from torch.testing._internal.common_distributed import MultiThreadedTestCase

from phalanx_tools.bench.harness_suites.clock import add_tests, arguments, check_sum, time_suite

_NUM_RANKS, _NUM_TESTS = arguments()


class Suite(MultiThreadedTestCase):
    """Trivial tests."""

    @property
    def world_size(self) -> int:
        """As asked."""
        return _NUM_RANKS

    def setUp(self) -> None:
        """Start the ranks."""
        super().setUp()
        this: Any = self
        this._spawn_threads()


add_tests(Suite, lambda _: check_sum(_NUM_RANKS), _NUM_TESTS)

if __name__ == "__main__":
    time_suite(Suite, _NUM_TESTS)
