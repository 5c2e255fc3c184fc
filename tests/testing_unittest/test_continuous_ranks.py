from __future__ import annotations

import os
import signal
import sys
import time
import unittest

import pytest
import torch

from phalanx.testing.unittest import MultiProcContinuousTest, skip_if_lt_x_gpu
from phalanx.torch_backend.untyped import dist
from tests.testing_unittest.inner_suites import SharedMoment, run


class Continuous(MultiProcContinuousTest):
    __test__ = False
    world_size = 2

    @classmethod
    def backend_str(cls) -> str | None:
        return "phalanx"

    def add_up(self) -> None:
        tensor = torch.ones(1)
        dist.all_reduce(tensor)
        assert tensor.item() == 2


class TestPassing(Continuous):
    __test__ = True

    def test_a_group_is_there(self) -> None:
        assert dist.get_rank() == self.rank
        assert self.pg is dist.group.WORLD
        self.add_up()
        MultiProcContinuousTest.seen = os.getpid()

    def test_b_ranks_stay_for_the_class(self) -> None:
        assert MultiProcContinuousTest.seen == os.getpid()
        self.add_up()


class TestGloo(Continuous):
    __test__ = True

    @classmethod
    def backend_str(cls) -> str | None:
        return "gloo"

    @property
    def world_size(self) -> int:  # type: ignore[override]
        return 3

    def test_world_size_may_be_a_property(self) -> None:
        tensor = torch.ones(1)
        dist.all_reduce(tensor)
        assert tensor.item() == 3


def test_a_failing_test_does_not_spoil_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PHALANX_GRACE_S", "60")  # of ranks that must be killed
    failed = SharedMoment()

    class Case(Continuous):
        def test_a(self) -> None:
            self.add_up()

        def test_b_fails(self) -> None:
            if self.rank == 1:
                failed.note()
                raise ValueError("boom")
            self.add_up()

        def test_c(self) -> None:
            self.add_up()

    results = run(Case)
    assert failed.seconds_since() < 20
    assert results.passed == ["test_a", "test_c"]
    text = results.errors["test_b_fails"]
    assert "Exception in worker process:" in text
    assert "rank 1: ValueError: boom" in text
    assert "rank 0: waiting in all_reduce" in text


def test_a_dead_rank_does_not_block_and_is_replaced() -> None:
    class Case(Continuous):
        def test_a_dies(self) -> None:
            if self.rank == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            self.add_up()

        def test_b(self) -> None:
            self.add_up()

        def test_c_all_die(self) -> None:
            os.kill(os.getpid(), signal.SIGKILL)

        def test_d(self) -> None:
            self.add_up()

    results = run(Case)
    assert results.passed == ["test_b", "test_d"]
    assert "rank 1: was killed by SIGKILL" in results.errors["test_a_dies"]
    assert "ranks 0-1: was killed by SIGKILL" in results.failures["test_c_all_die"]


def test_a_rank_that_ends_between_tests_is_replaced(caplog: pytest.LogCaptureFixture) -> None:
    class Case(Continuous):
        def setUp(self) -> None:
            ranks = self.__class__._ranks
            if ranks is not None:
                os.kill(ranks.members[1].pid, signal.SIGKILL)
                while ranks.members[1].is_alive():
                    time.sleep(0.001)
            super().setUp()

        def test_a(self) -> None:
            self.add_up()

        def test_b(self) -> None:
            self.add_up()

    assert run(Case).passed == ["test_a", "test_b"]
    assert "has ended between two tests" in caplog.text


@pytest.mark.slow
def test_a_late_test_fails_alone_with_stacks() -> None:
    class Case(Continuous):
        def test_a_late(self) -> None:
            if self.rank == 1:
                time.sleep(60)
            self.add_up()

        def test_b(self) -> None:
            self.add_up()

    results = run(Case, timeout_s=1)
    assert results.passed == ["test_b"]
    assert "time.sleep(60)" in results.errors["test_a_late"]
    assert "terminated or timed out" in results.errors["test_a_late"]


def test_skips_of_all_kinds() -> None:
    class Case(Continuous):
        def test_by_code(self) -> None:
            sys.exit(73)

        def test_by_exception(self) -> None:
            self.skipTest("no moon tonight")

        @skip_if_lt_x_gpu(99)
        def test_before(self) -> None: ...

        def test_z_runs(self) -> None:
            self.add_up()

    results = run(Case)
    assert "small world size" in results.skipped["test_by_code"]
    assert "no moon tonight" in results.skipped["test_by_exception"]
    assert results.skipped["test_before"] == "Need at least 99 CUDA devices"
    assert results.passed == ["test_z_runs"]


def test_a_group_that_can_not_be_had_skips_every_test() -> None:
    class Case(Continuous):
        @classmethod
        def _init_pg(cls, rank: int, world_size: int, rdvz_file: str) -> None:
            sys.exit(72)

        def test_a(self) -> None: ...

        def test_b(self) -> None: ...

    assert all("backend is not available" in reason for reason in run(Case).skipped.values())


def test_a_group_that_fails_fails_the_test() -> None:
    class Case(Continuous):
        @classmethod
        def _init_pg(cls, rank: int, world_size: int, rdvz_file: str) -> None:
            raise ValueError("no group today")

        def test_a(self) -> None: ...

    assert "no group today" in run(Case).errors["test_a"]


def test_without_devices_and_a_world_size_tests_are_skipped() -> None:
    class Case(MultiProcContinuousTest):
        device_type = "cuda"  # type: ignore[assignment]

        def test_a(self) -> None: ...

    if torch.cuda.device_count():
        pytest.skip("this machine has GPUs")
    assert run(Case).skipped == {"test_a": "No cuda devices available"}


def test_an_absent_backend_skips() -> None:
    class Case(Continuous):
        @classmethod
        def backend_str(cls) -> str | None:
            return "mpi"

        def test_a(self) -> None: ...

    if dist.is_mpi_available():
        pytest.skip("this torch has MPI")
    assert run(Case).skipped == {"test_a": "Backend 'mpi' is not available"}


def test_a_set_up_that_fails_leaves_the_ranks_in_step() -> None:
    class Case(Continuous):
        def setUp(self) -> None:
            super().setUp()
            if self._testMethodName == "test_a":
                raise unittest.SkipTest("not today")

        def test_a(self) -> None: ...

        def test_b(self) -> None:
            self.add_up()

    results = run(Case)
    assert results.skipped == {"test_a": "not today"}
    assert results.passed == ["test_b"]


@pytest.mark.slow
def test_ranks_that_can_not_be_forked_are_started_afresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("phalanx.testing.unittest.cuda_use.is_cuda_in_use", lambda: True)
    results = run(TestPassing)
    assert results.passed == ["test_a_group_is_there", "test_b_ranks_stay_for_the_class"]
