"""torch's MultiThreadedTestCase: ranks are threads, collectives run in rank 0's."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch.testing._internal.common_distributed import MultiThreadedTestCase

from phalanx.bench.harness_suites.clock import add_tests, arguments, time_suite

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


def _body(_: Any) -> None:
    ones = torch.ones(4)
    dist.all_reduce(ones)
    assert ones[0].item() == _NUM_RANKS


add_tests(Suite, _body, _NUM_TESTS)

if __name__ == "__main__":
    time_suite(Suite, _NUM_TESTS)
