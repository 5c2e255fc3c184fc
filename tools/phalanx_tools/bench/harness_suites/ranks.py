"""phalanx's pytest plugin: `python -m ... RANKS TESTS KIND`."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from phalanx.settings import set_environment
from phalanx_tools.bench.harness_suites.clock import arguments
from phalanx_tools.bench.proportional_memory import children_of, proportional_bytes


class _Clock:
    """Times the tests, without collecting them, and looks at the memory of warm ranks after them."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.rank_bytes = 0
        self.own_bytes = 0
        self.num_passed = 0

    @pytest.hookimpl(wrapper=True)
    def pytest_runtestloop(self) -> Generator[None, Any, Any]:
        start = time.perf_counter()
        result = yield
        self.seconds = time.perf_counter() - start
        self.rank_bytes = sum(proportional_bytes(pid) for pid in children_of("self"))
        self.own_bytes = proportional_bytes("self")
        return result

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.num_passed += report.when == "call" and report.passed


def main() -> None:
    """Run the tests."""
    num_ranks, num_tests = arguments()
    set_environment(PHALANX_BENCH_SIZES=f"{num_ranks},{num_tests}", PYTEST_DISABLE_PLUGIN_AUTOLOAD="1")
    clock = _Clock()
    tests = Path(__file__).with_name("ranks_tests.py")
    options = ["-q", "-p", "no:cacheprovider", "-p", "phalanx.testing.plugin", "--ranks-kind", sys.argv[3]]
    code = pytest.main([*options, "-c", "/dev/null", "--rootdir", str(tests.parent), str(tests)], plugins=[clock])
    answer = {
        "seconds_per_test": clock.seconds / num_tests,
        "correct": code == 0 and clock.num_passed == num_tests,
        "rank_bytes": clock.rank_bytes,
        "own_bytes": clock.own_bytes,
    }
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
