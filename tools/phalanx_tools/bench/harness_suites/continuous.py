"""torch's MultiProcContinuousTest with Gloo: processes and one group for the whole class."""

from __future__ import annotations

from torch.testing._internal.common_distributed import MultiProcContinuousTest

from phalanx_tools.bench.harness_suites.clock import add_tests, arguments, check_sum, time_suite

_NUM_RANKS, _NUM_TESTS = arguments()


class Suite(MultiProcContinuousTest):
    """Trivial tests."""

    world_size = _NUM_RANKS

    @classmethod
    def backend_str(cls) -> str:
        """Gloo."""
        return "gloo"


add_tests(Suite, lambda _: check_sum(_NUM_RANKS), _NUM_TESTS)

if __name__ == "__main__":
    time_suite(Suite, _NUM_TESTS)
