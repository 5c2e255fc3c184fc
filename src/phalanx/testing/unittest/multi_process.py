"""A test case whose tests run on ranks that are processes, one set per test.

In the main process, a test's method waits for the ranks; on a rank, it runs the test. The main process has rank -1.
"""

from __future__ import annotations

import functools
import inspect
import logging
import multiprocessing
import sys
import tempfile
import time
import traceback
import types
import unittest
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from phalanx.testing.ending import Ending
from phalanx.testing.unittest import return_codes
from phalanx.testing.unittest.process_ranks import ProcessRanks
from phalanx.testing.unittest.ranked_case import RankedTestCase
from phalanx.testing.unittest.skip_codes import TEST_ERROR_EXIT_CODE, TEST_SKIPS
from phalanx.testing.unittest.skips import reason_to_skip
from phalanx.testing.unittest.timeouts import get_timeout
from phalanx.testing.unittest.torch_case import common_utils, devices_untouched
from phalanx.torch_backend.untyped import dist

__unittest = True  # unittest leaves such frames out of tracebacks
_logger = logging.getLogger(__name__)
_MESSAGE_CHARACTERS = 32_000  # a longer message would block the rank until it is read


class MultiProcessTestCase(RankedTestCase):
    """Derive from it and call `_spawn_processes()` at the end of setUp()."""

    MAIN_PROCESS_RANK = -1
    TEST_ERROR_EXIT_CODE = TEST_ERROR_EXIT_CODE

    @property
    def is_master(self) -> bool:
        """Whether this is rank 0."""
        return bool(self.rank == 0)

    @property
    def destroy_pg_upon_exit(self) -> bool:
        """Whether a rank's default process group is destroyed after the test."""
        return True

    def _should_stop_test_suite(self) -> bool:
        return False

    def _current_test_name(self) -> str:
        return str(self.id()).rpartition(".")[2]

    def join_or_run(self, fn: Callable[[], None]) -> Any:
        """Make a method that waits in the main process, and runs the test on a rank."""

        @functools.wraps(fn)
        def wrapper(self: MultiProcessTestCase) -> None:
            if self.rank == self.MAIN_PROCESS_RANK:
                self._join_processes(fn)
            else:
                fn()

        return types.MethodType(wrapper, self)

    def setUp(self) -> None:
        """Prepare for ranks."""
        with devices_untouched():
            super().setUp()
        self.special_return_code_checks: dict[Any, int] = {}
        self.skip_return_code_checks: list[Any] = []
        self.processes: list[Any] = []
        self.pid_to_pipe: dict[int, Any] = {}
        self.rank = self.MAIN_PROCESS_RANK
        with tempfile.NamedTemporaryFile(delete=False) as file:
            self.file_name = file.name
        self._file_made = file.name
        self._ranks: ProcessRanks | None = None
        self._endings: list[Ending] = []
        self._reason_to_skip: str | None = None
        self.addCleanup(self._let_go)  # runs also if the setUp of a derived class fails after this

    def tearDown(self) -> None:
        """End the ranks that still run."""
        super().tearDown()
        self._let_go()

    def _let_go(self) -> None:
        if self._ranks is not None:
            self._ranks.close()
            self._ranks = None
        for pipe in self.pid_to_pipe.values():
            pipe.close()
        self.processes = []
        with suppress(OSError):
            Path(self._file_made).unlink()

    def _spawn_processes(self) -> None:
        """Make the ranks, unless the test is known to be skipped."""
        test = getattr(self, self._current_test_name(), None)
        self._reason_to_skip = reason_to_skip(self, test)
        if self._reason_to_skip is None:
            self._ranks = ProcessRanks(int(self.world_size))
            self._start_processes(self._ranks.process_factory(self.__class__._run))

    def _start_processes(self, proc: Callable[..., Any]) -> None:
        """Start one process per rank; `proc` takes what multiprocessing.Process takes."""
        if self._ranks is None:
            self._ranks = ProcessRanks(int(self.world_size))
        self.processes = []
        options = {"fake_pg": getattr(self, "fake_pg", False)}
        for rank in range(int(self.world_size)):
            ours, theirs = multiprocessing.Pipe()
            process = proc(
                target=self.__class__._run,
                name=f"process {rank}",
                args=(rank, self._current_test_name(), self.file_name, theirs),
                kwargs=options if _takes(self.__class__._run, "fake_pg") else {},
            )
            process.start()
            theirs.close()
            self.pid_to_pipe[process.pid] = ours
            self.processes.append(process)

    @classmethod
    def _run(cls, rank: int, test_name: str, file_name: str, parent_pipe: Any, **kwargs: Any) -> None:
        """Run a rank."""
        self = cls(test_name)
        self.rank = rank
        self.file_name = file_name
        self.run_test(test_name, parent_pipe)

    def run_test(self, test_name: str, parent_pipe: Any) -> None:
        """Run the test on this rank.

        Raises:
            SystemExit: With the code of a skip, or of a failure.
        """
        common_utils.set_rng_seed()
        try:
            getattr(self, test_name)()
        except unittest.SkipTest as skip:
            _logger.info("Process %s skipping test %s for following reason: %s", self.rank, test_name, skip)
            sys.exit(TEST_SKIPS["generic"].exit_code)
        except Exception:
            with suppress(OSError):
                parent_pipe.send(traceback.format_exc()[-_MESSAGE_CHARACTERS:])
            sys.exit(TEST_ERROR_EXIT_CODE)
        finally:
            parent_pipe.close()
        if self.destroy_pg_upon_exit and dist.is_initialized():
            dist.destroy_process_group()

    def _join_processes(self, fn: Any) -> None:
        """Wait for the ranks, and pass, skip or fail the test."""
        if self._reason_to_skip is not None:
            raise unittest.SkipTest(self._reason_to_skip)
        start = time.monotonic()
        try:
            if self._ranks is not None:
                self._endings = self._ranks.wait(
                    self.processes,
                    timeout_s=get_timeout(self.id()),
                    is_expected=lambda status: return_codes.may_end(status) or self._ends_are_unusual(fn),
                )
            self._check_return_codes(fn, time.monotonic() - start)
        finally:
            self._let_go()

    def _ends_are_unusual(self, fn: Any) -> bool:
        return fn in self.special_return_code_checks or fn in self.skip_return_code_checks

    def _check_return_codes(self, fn: Any, elapsed_time: float) -> None:
        """Turn the ends of all ranks into a pass, a skip or a failure."""
        if not self.processes:
            _logger.warning("Note: no subprocesses were spawned, test was likely skipped.")
            return
        timeout_s = get_timeout(self.id())
        codes = [process.exitcode for process in self.processes]
        exits = [f"Process {rank} exited with error code {code} and" for rank, code in enumerate(codes)]
        return_codes.check_errors(self._endings, exits, elapsed_time, timeout_s)
        if fn in self.skip_return_code_checks:
            return
        if return_codes.check_skips(self._endings, self.id(), codes):
            return
        expected = self.special_return_code_checks.get(fn, 0)
        return_codes.check_exit_codes(self._endings, self.processes, expected, timeout_s)


def _takes(function: Callable[..., Any], name: str) -> bool:
    parameters = inspect.signature(function).parameters
    return name in parameters or any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters.values())
