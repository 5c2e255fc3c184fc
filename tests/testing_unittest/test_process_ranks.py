from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from phalanx.testing.unittest import MultiProcessTestCase, skip_if_lt_x_gpu
from phalanx.torch_backend.untyped import dist
from tests.testing_unittest.inner_suites import SharedMoment, run


class Ranks(MultiProcessTestCase):
    """Two ranks; tests are in the derived classes, which pytest must not collect."""

    __test__ = False

    @property
    def world_size(self) -> int:
        return 2

    def setUp(self) -> None:
        super().setUp()
        self._spawn_processes()

    def init(self, backend: str = "phalanx") -> None:
        dist.init_process_group(
            backend, init_method=f"file://{self.file_name}", rank=self.rank, world_size=self.world_size
        )


class TestPassing(Ranks):
    """A suite as people have it: collected and run by pytest itself."""

    __test__ = True

    def test_phalanx_serves_the_group(self) -> None:
        self.init()
        tensor = torch.ones(3)
        dist.all_reduce(tensor)
        self.assertEqual(tensor, torch.full((3,), 2.0))  # noqa: PT009

    def test_gloo_is_gloo(self) -> None:
        self.init("gloo")
        assert dist.get_backend() == "gloo"
        assert "Gloo" in type(dist.group.WORLD._get_backend(torch.device("cpu"))).__name__
        dist.barrier()

    def test_rank_and_file_are_set(self) -> None:
        assert self.rank in (0, 1)
        assert self.is_master == (self.rank == 0)
        assert Path(self.file_name).exists()
        assert self._current_test_name() == "test_rank_and_file_are_set"

    def test_ranks_have_the_same_seed(self) -> None:
        self.init()
        values = [torch.empty(1) for _ in range(2)]
        dist.all_gather(values, torch.rand(1))
        assert values[0] == values[1]


def test_every_failing_rank_is_shown_with_its_traceback() -> None:
    class Case(Ranks):
        def test_both(self) -> None:
            raise ValueError(f"boom on {self.rank}")

    text = run(Case).errors["test_both"]
    assert "RuntimeError: ranks 0-1: ValueError: boom on" in text
    for rank in (0, 1):
        assert f"Process {rank} exited with error code 10 and exception:\nTraceback" in text
        assert f"ValueError: boom on {rank}" in text


def test_a_failing_rank_frees_its_peers_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PHALANX_GRACE_S", "60")  # of ranks that must be killed
    failed = SharedMoment()

    class Case(Ranks):
        def test_one(self) -> None:
            self.init()
            if self.rank == 1:
                failed.note()
                raise ValueError("boom")
            dist.barrier()

    text = run(Case).errors["test_one"]
    assert failed.seconds_since() < 20
    assert "rank 1: ValueError: boom" in text
    assert "rank 0: waiting in barrier" in text
    assert "Process 0 exited" not in text


@pytest.mark.slow
def test_a_failing_rank_frees_a_peer_that_computes() -> None:
    class Case(Ranks):
        def test_one(self) -> None:
            if self.rank == 1:
                raise ValueError("boom")
            time.sleep(60)

    start = time.monotonic()
    assert "boom" in run(Case).errors["test_one"]
    assert time.monotonic() - start < 20


@pytest.mark.parametrize("code", [3, 1])
def test_an_exit_code_of_a_later_rank_counts(code: int) -> None:
    class Case(Ranks):
        def test_leaving(self) -> None:
            if self.rank == 1:
                sys.exit(code)

    assert f"Expected exit code 0 but got {code} for pid" in run(Case).failures["test_leaving"]


@pytest.mark.parametrize("rank", [0, 1])
def test_a_signal_fails_the_test_and_shows_where(rank: int) -> None:
    class Case(Ranks):
        def test_crash(self) -> None:
            if self.rank == rank:
                os.kill(os.getpid(), signal.SIGSEGV)

    text = run(Case).failures["test_crash"]
    assert f"rank {rank}: was killed by SIGSEGV" in text
    assert "Expected exit code 0 but got -11 for pid" in text
    assert "in test_crash" in text
    assert "_spawn_processes" not in text


@pytest.mark.slow
def test_a_late_test_shows_every_ranks_stack_and_fails_alone() -> None:
    class Case(Ranks):
        def test_a_late(self) -> None:
            self.init()
            if self.rank == 1:
                time.sleep(60)
            dist.barrier()

        def test_b(self) -> None:
            pass

    results = run(Case, timeout_s=1)
    text = results.errors["test_a_late"]
    for rank in (0, 1):
        assert f"Process {rank} terminated or timed out after" in text
    assert "rank 1: not done after 1 s" in text
    assert "time.sleep(60)" in text
    assert "dist.barrier()" in text
    assert results.passed == ["test_b"]


def test_a_skip_inside_a_rank_says_why() -> None:
    class Case(Ranks):
        def test_skipping(self) -> None:
            self.skipTest("no moon tonight")

    assert run(Case).skipped == {"test_skipping": "Test skipped at subprocess level: no moon tonight"}


def test_a_skip_of_some_ranks_is_an_error_when_the_first_ran() -> None:
    class Case(Ranks):
        def test_divided(self) -> None:
            if self.rank == 1:
                self.skipTest("only here")

    assert "decide the same on every rank" in run(Case).failures["test_divided"]


def test_a_skip_that_is_known_before_costs_no_rank() -> None:
    started: list[str] = []

    class Case(Ranks):
        def _start_processes(self, proc: Callable[..., Any]) -> None:
            started.append(self.id())
            super()._start_processes(proc)

        @skip_if_lt_x_gpu(99)
        def test_gpus(self) -> None: ...

    assert list(run(Case).skipped.values()) == ["Need at least 99 CUDA devices"]
    assert not started


def test_only_own_children_are_ended() -> None:
    class Case(Ranks):
        def test_one(self) -> None:
            raise ValueError("boom")

    bystander = multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,), daemon=True)
    bystander.start()
    other = subprocess.Popen(["sleep", "60"])
    try:
        assert run(Case).errors
        assert bystander.is_alive()
        assert other.poll() is None
    finally:
        bystander.kill()
        bystander.join()
        bystander.close()
        other.kill()
        other.wait()


def test_special_return_codes_are_expected() -> None:
    class Case(Ranks):
        def setUp(self) -> None:
            super().setUp()
            self.special_return_code_checks = {
                self.test_abort.__wrapped__: -signal.SIGABRT  # type: ignore[attr-defined]
            }

        def test_abort(self) -> None:
            if self.rank == 0:
                os.kill(os.getpid(), signal.SIGABRT)

    assert run(Case).passed == ["test_abort"]


def test_special_return_codes_are_demanded() -> None:
    class Case(Ranks):
        def setUp(self) -> None:
            super().setUp()
            self.special_return_code_checks = {self.test_abort.__wrapped__: 5}  # type: ignore[attr-defined]

        def test_abort(self) -> None: ...

    assert "Expected exit code 5 but got 0" in run(Case).failures["test_abort"]


def test_return_codes_can_be_left_unchecked() -> None:
    class Case(Ranks):
        def setUp(self) -> None:
            super().setUp()
            self.skip_return_code_checks = [self.test_any.__wrapped__]  # type: ignore[attr-defined]

        def test_any(self) -> None:
            os._exit(17 + self.rank)

    assert run(Case).passed == ["test_any"]


def test_an_end_without_a_word_is_a_pass_when_its_code_is_0() -> None:
    class Case(Ranks):
        def test_any(self) -> None:
            os._exit(0)

    assert run(Case).passed == ["test_any"]


def test_run_may_be_overridden() -> None:
    class Case(Ranks):
        @classmethod
        def _run(cls, rank: int, test_name: str, file_name: str, pipe: Any) -> None:  # type: ignore[override]
            self = cls(test_name)
            self.rank, self.file_name = rank, file_name
            self.init()
            self.run_test(test_name, pipe)
            sys.exit(0)

        @property
        def destroy_pg_upon_exit(self) -> bool:
            return False

        def test_group(self) -> None:
            dist.barrier()

    assert run(Case).passed == ["test_group"]


def test_an_exception_before_the_test_is_shown() -> None:
    class Case(Ranks):
        @classmethod
        def _run(cls, *_: Any, **__: Any) -> None:
            raise ValueError("no group today")

        def test_any(self) -> None: ...

    text = run(Case).errors["test_any"]
    assert "Process 1 exited with error code 1 and exception:" in text
    assert "no group today" in text


def _be_spawned(*_: Any) -> None:
    sys.exit(4)


def test_processes_made_by_a_suite_are_watched_as_well() -> None:
    class Case(MultiProcessTestCase):
        @property
        def world_size(self) -> int:
            return 2

        def setUp(self) -> None:
            super().setUp()
            process = multiprocessing.get_context("fork").Process

            def make(*, target: Any, name: str, args: Any, kwargs: Any) -> Any:
                return process(target=_be_spawned, name=name, args=args)

            self._start_processes(make)

        def test_any(self) -> None: ...

    assert "ranks 0-1: ended with exit code 4" in run(Case).failures["test_any"]


def test_a_method_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ValueError, match="no such test method"):
        TestPassing(methodName="test_nothing")
    TestPassing()  # without a name it may be made


def test_nothing_is_left_when_set_up_fails_after_the_ranks() -> None:
    made: list[Any] = []

    class Case(Ranks):
        def setUp(self) -> None:
            super().setUp()
            made.extend([*self.processes, self.file_name])
            raise ValueError("too late")

        def test_any(self) -> None:
            time.sleep(60)

    assert "too late" in run(Case).errors["test_any"]
    *processes, file_name = made
    assert all(not Path(f"/proc/{process.pid}").exists() for process in processes)
    assert not Path(file_name).exists()


@pytest.mark.slow
def test_ranks_that_can_not_be_forked_are_started_afresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("phalanx.testing.unittest.cuda_use.is_cuda_in_use", lambda: True)
    assert run(TestPassing, "test_phalanx_serves_the_group").passed == ["test_phalanx_serves_the_group"]


def test_a_local_class_is_forked_even_where_cuda_is_in_use(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("phalanx.testing.unittest.cuda_use.is_cuda_in_use", lambda: True)

    class Case(Ranks):
        def test_any(self) -> None: ...

    assert run(Case).passed == ["test_any"]
    assert "can't use a GPU" in caplog.text
