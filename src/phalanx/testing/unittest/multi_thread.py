"""A test case whose tests run on ranks that are threads, each with its own default process group.

Nothing is forked and no port is used. setUp() and tearDown() belong to the main thread; perThreadSetUp() and
perThreadTearDown() to each rank.
"""

from __future__ import annotations

import functools
import threading
import types
import unittest
from collections.abc import Callable
from typing import Any

from phalanx.testing.unittest.ranked_case import RankedTestCase
from phalanx.testing.unittest.skips import reason_to_skip
from phalanx.testing.unittest.thread_team import run_on_threads
from phalanx.testing.unittest.timeouts import get_timeout
from phalanx.testing.unittest.torch_case import TestCase, devices_untouched
from phalanx.torch_backend.untyped import dist

__unittest = True  # unittest leaves such frames out of tracebacks


class MultiThreadedTestCase(RankedTestCase):
    """Derive from it and call `_spawn_threads()` in setUp()."""

    MAIN_THREAD_RANK = -1

    @property
    def _current_test_name(self) -> str:
        return str(self.id()).rpartition(".")[2]

    def join_or_run(self, fn: Callable[[], None]) -> Any:
        """Make a method that runs the ranks from the main thread, and runs the test on a rank."""

        @functools.wraps(fn)
        def wrapper(self: MultiThreadedTestCase) -> None:
            if self.rank != self.MAIN_THREAD_RANK:
                fn()
            elif self._is_spawned:
                self._join_threads(fn)

        return types.MethodType(wrapper, self)

    def setUp(self) -> None:
        """Prepare the main thread."""
        with devices_untouched():  # otherwise later tests could not fork their ranks
            super().setUp()
        self.rank = self.MAIN_THREAD_RANK
        self._is_spawned = False

    def perThreadSetUp(self) -> None:
        """Prepare a rank; for derived classes."""

    def perThreadTearDown(self) -> None:
        """Clean up after a rank; for derived classes."""

    def _spawn_threads(self) -> None:
        """Make the test run on threads, which start after setUp()."""
        self.__class__.global_store = dist.HashStore()
        self._is_spawned = True

    def _join_threads(self, fn: Any) -> None:
        reason = reason_to_skip(self, fn)
        if reason is not None:
            raise unittest.SkipTest(reason)
        name, world_size = self._current_test_name, int(self.world_size)
        run_on_threads(
            lambda rank: self.__class__._run(name, rank, world_size),
            world_size,
            timeout_s=get_timeout(self.id()),
            test_id=self.id(),
        )

    @classmethod
    def _run(cls, test_name: str, rank: int, world_size: int, **kwargs: Any) -> None:
        """Run a rank."""
        self = cls(test_name)
        self.rank = rank
        if hasattr(self, "_tls"):  # tolerances are kept per thread
            self._tls = threading.local()
            self._tls.precision = TestCase._precision
            self._tls.rel_tol = TestCase._rel_tol
        self.run_test_with_threaded_pg(test_name, rank, world_size)

    def run_test_with_threaded_pg(self, test_name: str, rank: int, world_size: int) -> None:
        """Run the test on this rank, in a process group of its own world."""
        dist.init_process_group("threaded", rank=rank, world_size=world_size, store=self.__class__.global_store)
        self.perThreadSetUp()
        try:
            getattr(self, test_name)()
        finally:
            self.perThreadTearDown()
        if dist.is_initialized():  # not after a failure: peers must not take that for a regular end
            dist.destroy_process_group()

    def assertEqualOnRank(self, x: Any, y: Any, msg: Any = None, *, rank: int = 0) -> None:
        """Compare on one rank only: threads share one random generator."""
        if self.rank == rank:
            self.assertEqual(x, y, msg)  # noqa: PT009

    def assertNotEqualOnRank(self, x: Any, y: Any, msg: Any = None, *, rank: int = 0) -> None:
        """Check on one rank only that two values differ."""
        if self.rank == rank:
            self.assertNotEqual(x, y, msg)  # noqa: PT009
