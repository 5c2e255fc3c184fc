"""torch's MultiProcessTestCase with Gloo: every test spawns its processes."""

from __future__ import annotations

from typing import Any

from torch.testing._internal.common_distributed import MultiProcessTestCase

from phalanx.torch_backend.untyped import dist
from phalanx_tools.bench.harness_suites.clock import add_tests, arguments, check_sum, time_suite

_NUM_RANKS, _NUM_TESTS = arguments()


class Suite(MultiProcessTestCase):
    """Trivial tests."""

    @property
    def world_size(self) -> int:
        """As asked."""
        return _NUM_RANKS

    def setUp(self) -> None:
        """Start the ranks."""
        super().setUp()
        self._spawn_processes()


def _body(test: Any) -> None:
    store = dist.FileStore(test.file_name, _NUM_RANKS)
    dist.init_process_group("gloo", store=store, rank=test.rank, world_size=_NUM_RANKS)
    check_sum(_NUM_RANKS)
    dist.destroy_process_group()


add_tests(Suite, _body, _NUM_TESTS)

if __name__ == "__main__":
    time_suite(Suite, _NUM_TESTS)
