"""Running a unittest suite against the clock."""

from __future__ import annotations

import io
import json
import sys
import time
import unittest
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist


def arguments() -> tuple[int, int]:
    """Return the numbers of ranks and tests; spawned ranks, which import the suite again, get the same."""
    return int(sys.argv[1]), int(sys.argv[2])


def check_sum(num_ranks: int) -> None:
    """The trivial test: add up ones over torch's default group."""
    ones = torch.ones(4)
    dist.all_reduce(ones)
    assert ones[0].item() == num_ranks


def add_tests(case: Any, body: Callable[[Any], None], num_tests: int) -> None:
    """Give a class that many tests."""
    for number in range(num_tests):

        def test(self: Any) -> None:
            body(self)

        test.__name__ = f"test_{number:03}"
        setattr(case, test.__name__, test)


def time_suite(case: Any, num_tests: int) -> None:
    """Run a class's tests and print how long they took."""
    suite = unittest.defaultTestLoader.loadTestsFromTestCase(case)
    stream = io.StringIO()
    start = time.perf_counter()
    result = unittest.TextTestRunner(stream=stream).run(suite)
    seconds = time.perf_counter() - start
    correct = result.wasSuccessful() and result.testsRun == num_tests and not result.skipped
    if not correct:
        print(stream.getvalue(), file=sys.stderr)
    print(json.dumps({"seconds_per_test": seconds / num_tests, "correct": correct}))
