"""A test case whose tests run on ranks that live as long as the class, with one process group.

A failing test does not affect the others: ranks and group are replaced before the next test.
"""

from __future__ import annotations

import functools
import inspect
import logging
import time
import types
import unittest
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch

from phalanx.settings import set_environment
from phalanx.testing.unittest import return_codes
from phalanx.testing.unittest.continuous_ranks import ContinuousRanks
from phalanx.testing.unittest.skip_codes import meaning_of
from phalanx.testing.unittest.skips import reason_to_skip
from phalanx.testing.unittest.timeouts import get_timeout
from phalanx.testing.unittest.torch_case import TestCase, common_utils, devices_untouched
from phalanx.torch_backend.untyped import dist

__unittest = True  # unittest leaves such frames out of tracebacks
_logger = logging.getLogger(__name__)
_UNSET = -2


class MultiProcContinuousTest(TestCase):  # type: ignore[misc]
    """Derive a class from it, define `world_size` and `backend_str()`, and write tests."""

    MAIN_PROCESS_RANK = -1
    world_size: Any = _UNSET
    rank: Any = _UNSET
    rdvz_file: str | None = None
    timeout = timedelta(seconds=120)
    poison_pill = False  # never changes: here no test affects the next
    pg: Any = None
    processes: Any = ()
    _processes_spawned = False
    _ranks: ContinuousRanks | None = None

    def __init__(self, method_name: str = "runTest", methodName: str = "runTest") -> None:
        name = methodName if methodName != "runTest" else method_name
        super().__init__(name)
        test = getattr(self, name, None)
        if test is not None:
            setattr(self, name, self._worker_run_main_wait(test))
        elif methodName != "runTest":
            raise ValueError(f"no such test method in {self.__class__}: {methodName}")

    @classmethod
    def backend_str(cls) -> str | None:
        """Return the backend's name; None lets the device of the tensors decide."""
        return None

    @classmethod
    def device_type(cls) -> str:
        """Return the device type."""
        accelerator = torch.accelerator.current_accelerator()
        return "cpu" if accelerator is None else accelerator.type

    @classmethod
    def opts(cls, high_priority_stream: bool = False) -> Any:
        """Return the options of the process group."""
        return None

    def setUp(self) -> None:
        """Start the ranks if there are none."""
        with devices_untouched():
            super().setUp()
        self.rank = self.MAIN_PROCESS_RANK
        test = getattr(self, self._testMethodName, None)
        reason = reason_to_skip(self, test)
        if reason is not None:
            raise unittest.SkipTest(reason)
        self.__class__._ensure_processes_spawned()

    @classmethod
    def tearDownClass(cls) -> None:
        """End the ranks."""
        cls._end_ranks(is_clean=True)
        super().tearDownClass()

    @classmethod
    def _ensure_processes_spawned(cls) -> None:
        if cls._ranks is not None and not cls._ranks.are_running():
            _logger.warning("A rank of %s has ended between two tests; all are replaced", cls.__name__)
            cls._end_ranks(is_clean=False)
        if cls._processes_spawned:
            return
        cls.world_size = cls._get_world_size(_device_type(cls))
        backend = cls.backend_str() if callable(cls.backend_str) else cls.backend_str
        if not _is_available(backend):
            raise unittest.SkipTest(f"Backend '{backend}' is not available")
        cls._spawn_processes(cls.world_size)
        cls._processes_spawned = True

    @classmethod
    def _get_world_size(cls, device_type: str) -> int:
        size = inspect.getattr_static(cls, "world_size")
        if isinstance(size, property):
            assert size.fget is not None
            size = size.fget(object.__new__(cls))
        if size == _UNSET:
            size = torch.get_device_module(device_type).device_count()
            if size == 0:
                raise unittest.SkipTest(f"No {device_type} devices available")
        return int(size)

    @classmethod
    def _spawn_processes(cls, world_size: int) -> None:
        cls._ranks = ContinuousRanks(cls._worker_loop, int(world_size))
        cls.rdvz_file = cls._ranks.rendezvous
        cls.processes = cls._ranks.members

    @classmethod
    def _end_ranks(cls, *, is_clean: bool) -> None:
        if cls._ranks is not None:
            ranks, cls._ranks = cls._ranks, None
            ranks.close(is_clean=is_clean)
            cls.processes = ()
            cls._processes_spawned = False

    def _worker_run_main_wait(self, fn: Callable[[], None]) -> Any:
        """Make a method that sends the test to the ranks in the main process, and runs the test on a rank."""

        @functools.wraps(fn)
        def wrapper(self: MultiProcContinuousTest) -> None:
            if self.rank == self.MAIN_PROCESS_RANK:
                self._run_on_ranks()
            else:
                fn()

        return types.MethodType(wrapper, self)

    def _run_on_ranks(self) -> None:
        ranks = self.__class__._ranks
        if ranks is None:
            return  # a derived class makes ranks in its own way, and has made none
        start, timeout_s = time.monotonic(), float(get_timeout(self.id()))
        endings = ranks.run(self.id(), timeout_s)
        if not all(ending.is_clean(also_failed=False) for ending in endings):
            self.__class__._end_ranks(is_clean=False)
        exits = [f"Exception in worker process: rank {rank} exited with" for rank in range(len(endings))]
        return_codes.check_errors(endings, exits, time.monotonic() - start, timeout_s)
        return_codes.check_deaths(endings, timeout_s)
        return_codes.check_skips(endings, self.id(), [None] * len(endings))

    @classmethod
    def _worker_loop(cls, rank: int, world_size: int, rdvz_file: str, task_queue: Any, completion_queue: Any) -> None:
        """Run a rank: make the group, then run tests until one fails or there are no more."""
        cls.rank, cls.world_size = rank, world_size
        reason: BaseException | None = None
        try:
            cls._init_pg(rank, world_size, rdvz_file)
        except BaseException as error:
            reason = _as_result(error)
        while (test_id := task_queue.get()) is not None:
            result = reason if reason is not None else cls._result_of(test_id)
            completion_queue.put(result)
            if isinstance(result, BaseException) and not isinstance(result, unittest.SkipTest):
                return  # do not destroy the group: that would wait for ranks that have ended
        if reason is None and dist.is_initialized():
            dist.destroy_process_group()

    @classmethod
    def _result_of(cls, test_id: str) -> str | BaseException:
        try:
            cls._run_test_given_id(test_id)
        except BaseException as error:
            return _as_result(error)
        return test_id

    @classmethod
    def _init_pg(cls, rank: int, world_size: int, rdvz_file: str) -> None:
        """Make the process group."""
        set_environment(LOCAL_RANK=str(rank))
        dist.init_process_group(
            backend=cls.backend_str(),
            world_size=world_size,
            rank=rank,
            store=dist.FileStore(rdvz_file, world_size),
            pg_options=cls.opts(),
            timeout=cls.timeout,
        )
        cls.pg = dist.group.WORLD

    @classmethod
    def _run_test_given_id(cls, test_id: str, **kwargs: Any) -> None:
        """Run one test on this rank."""
        name = test_id.rpartition(".")[2]
        self = cls(name)
        self.rank, self.world_size = cls.rank, cls.world_size
        common_utils.set_rng_seed()
        getattr(self, name)(**kwargs)


def _as_result(error: BaseException) -> BaseException:
    """Return the result for an exception; a rank that exits with the code of a skip has skipped."""
    if isinstance(error, SystemExit):
        meaning = meaning_of(error.code)
        if meaning is not None:
            return unittest.SkipTest(meaning)
    return error


def _device_type(cls: Any) -> str:
    value = inspect.getattr_static(cls, "device_type")
    if isinstance(value, property):
        assert value.fget is not None
        return str(value.fget(cls))  # such a property uses only attributes of the class
    value = cls.device_type
    return str(value() if callable(value) else value)


def _is_available(backend: str | None) -> bool:
    checks = {
        "nccl": dist.is_nccl_available,
        "gloo": dist.is_gloo_available,
        "mpi": dist.is_mpi_available,
        "xccl": dist.is_xccl_available,
    }
    return backend not in checks or checks[backend]()
