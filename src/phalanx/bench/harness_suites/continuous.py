"""torch's MultiProcContinuousTest with Gloo: processes and one group for the whole class."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch.testing._internal.common_distributed import MultiProcContinuousTest

from phalanx.bench.harness_suites.clock import add_tests, arguments, time_suite

_NUM_RANKS, _NUM_TESTS = arguments()


class Suite(MultiProcContinuousTest):
    """Trivial tests."""

    world_size = _NUM_RANKS

    @classmethod
    def backend_str(cls) -> str:
        """Gloo."""
        return "gloo"


def _body(_: Any) -> None:
    ones = torch.ones(4)
    dist.all_reduce(ones)
    assert ones[0].item() == _NUM_RANKS


add_tests(Suite, _body, _NUM_TESTS)

if __name__ == "__main__":
    time_suite(Suite, _NUM_TESTS)
