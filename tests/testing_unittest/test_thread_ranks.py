from __future__ import annotations

import sys
import threading
import time
import unittest
from typing import Any

import pytest
import torch

from phalanx.testing.unittest import MultiThreadedTestCase, skip_if_lt_x_gpu, spawn_threads_and_init_comms
from phalanx.torch_backend.thread_worlds import thread_worlds
from phalanx.torch_backend.untyped import c10d, dist
from tests.leftovers import wait_until
from tests.testing_unittest.inner_suites import SharedMoment, run


class Threads(MultiThreadedTestCase):
    __test__ = False

    @property
    def world_size(self) -> int:
        return 4

    def setUp(self) -> None:
        super().setUp()
        self._spawn_threads()


class TestPassing(Threads):
    __test__ = True

    def test_each_thread_has_its_own_default_group(self) -> None:
        assert dist.get_rank() == self.rank
        assert dist.get_world_size() == 4
        tensor = torch.full((3,), float(self.rank))
        dist.all_reduce(tensor)
        self.assertEqual(tensor, torch.full((3,), 6.0))  # noqa: PT009

    def test_subgroups_are_found_by_their_names(self) -> None:
        pair = [0, 1] if self.rank < 2 else [2, 3]
        groups = [dist.new_group([0, 1]), dist.new_group([2, 3])]
        tensor = torch.tensor([self.rank])
        dist.all_reduce(tensor, group=groups[self.rank // 2])
        assert tensor.item() == sum(pair)

    def test_messages_go_from_thread_to_thread(self) -> None:  # torch's own threaded group has none
        tensor = torch.tensor([self.rank])
        if self.rank == 0:
            dist.send(tensor, 3)
        elif self.rank == 3:
            dist.recv(tensor, 0)
            assert tensor.item() == 0

    def test_asserts_can_be_for_one_rank(self) -> None:
        self.assertEqualOnRank(self.rank, 0)
        self.assertNotEqualOnRank(self.rank, 0, rank=2)


class TestSetUpPerThread(Threads):
    __test__ = True

    def perThreadSetUp(self) -> None:
        self.prepared_by = threading.get_ident()

    def test_set_up_runs_on_the_rank(self) -> None:
        assert self.prepared_by == threading.get_ident()


class TestOneMethod(unittest.TestCase):
    @spawn_threads_and_init_comms(world_size=3)
    def test_with_arguments(self) -> None:
        assert dist.get_world_size() == 3
        dist.barrier()

    @spawn_threads_and_init_comms
    def test_without(self) -> None:
        assert dist.get_world_size() == 4


def test_a_failing_thread_frees_the_others_and_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PHALANX_GRACE_S", "60")  # of ranks that must be killed
    failed = SharedMoment()

    class Case(Threads):
        def test_one(self) -> None:
            if self.rank == 1:
                failed.note()
                raise ValueError("boom")
            dist.barrier()

    text = run(Case).errors["test_one"]
    assert failed.seconds_since() < 20
    assert "rank 1: ValueError: boom" in text
    assert "Thread 1 exited with exception:\nTraceback" in text
    assert "Thread 0 exited" not in text


@pytest.mark.slow
def test_a_late_thread_is_shown_and_ended_and_the_next_test_runs() -> None:
    class Case(Threads):
        def test_a_late(self) -> None:
            if self.rank != 1:
                dist.barrier()
            while self.rank == 1:
                time.sleep(0.01)

        def test_b(self) -> None:
            dist.barrier()

    results = run(Case, timeout_s=1)
    text = results.errors["test_a_late"]
    assert "Thread 1 terminated or timed out after" in text
    assert "time.sleep(0.01)" in text
    assert "dist.barrier()" in text
    assert results.passed == ["test_b"]
    assert wait_until(lambda: not [thread for thread in threading.enumerate() if thread.name.startswith("rank ")], 50)


def test_leaving_with_an_unknown_code_is_an_error() -> None:
    class Case(Threads):
        def test_leaving(self) -> None:
            sys.exit(3)

    assert "SystemExit: 3" in run(Case).errors["test_leaving"]


@pytest.mark.parametrize(("code", "reason"), [(73, "Skipped due to small world size."), (86, "subprocess level")])
def test_leaving_with_the_code_of_a_skip_skips(code: int, reason: str) -> None:
    class Case(Threads):
        def test_leaving(self) -> None:
            sys.exit(code)

    assert reason in run(Case).skipped["test_leaving"]


def test_a_skip_that_is_known_before_starts_no_thread() -> None:
    class Case(Threads):
        @skip_if_lt_x_gpu(99)
        def test_gpus(self) -> None: ...

        @classmethod
        def _run(cls, *_: Any, **__: Any) -> None:
            raise AssertionError("a thread was started")

    assert run(Case).skipped == {"test_gpus": "Need at least 99 CUDA devices"}


def test_an_error_in_a_ranks_set_up_is_an_error() -> None:
    class Case(Threads):
        def perThreadSetUp(self) -> None:
            raise ValueError("not ready")

        def test_any(self) -> None: ...

    assert "not ready" in run(Case).errors["test_any"]


def test_a_backend_asked_for_by_name_is_the_one() -> None:
    backends: set[str] = set()

    class Case(Threads):
        def run_test_with_threaded_pg(self, test_name: str, rank: int, world_size: int) -> None:
            dist.init_process_group("gloo", rank=rank, world_size=world_size, store=self.global_store)
            getattr(self, test_name)()
            dist.destroy_process_group()

        def test_gloo(self) -> None:
            dist.barrier()
            backends.add(type(dist.group.WORLD._get_backend(torch.device("cpu"))).__name__)

    assert run(Case).passed == ["test_gloo"]
    assert backends == {"ProcessGroupGloo"}


def test_the_world_of_other_threads_stays_and_everything_is_put_back() -> None:
    before, hook = c10d._world, sys.excepthook
    with thread_worlds():
        assert c10d._world is not before
        assert c10d._world.pg_map is before.pg_map
        with thread_worlds():
            pass
        assert c10d._world is not before
    assert c10d._world is before
    assert sys.excepthook is hook
    assert not dist.is_initialized()
