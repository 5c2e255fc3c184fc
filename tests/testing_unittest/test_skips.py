from __future__ import annotations

import importlib.util
import sys
import unittest
from collections.abc import Callable
from typing import Any

import pytest
import torch

from phalanx.testing.unittest import (
    TEST_SKIPS,
    MultiProcessTestCase,
    get_required_world_size,
    import_transformers_or_skip,
    nccl_skip_if_lt_x_gpu,
    require_n_gpus_for_nccl_backend,
    requires_accelerator_dist_backend,
    requires_gloo,
    requires_mpi,
    requires_nccl_version,
    requires_world_size,
    skip_if_lt_x_gpu,
    skip_if_no_gpu,
    skip_if_odd_worldsize,
    skip_if_rocm_multiprocess,
    skip_if_small_worldsize,
    skip_if_win32,
)
from phalanx.testing.unittest.skip_codes import meaning_of
from phalanx.testing.unittest.skips import reason_to_skip
from phalanx.torch_backend.untyped import dist
from tests.testing_unittest.inner_suites import run

NO_GPU = not torch.cuda.is_available()


class Offline:
    """A test case, as far as skips look at it."""

    world_size = 3


def decided(decorator: Callable[..., Any], case: Any = None) -> str | None:
    """Why a test with this decorator is skipped beforehand."""
    return reason_to_skip(case or Offline(), decorator(lambda self: None))


def test_codes_are_those_of_torch() -> None:
    known = {"backend_unavailable": 72, "small_worldsize": 73, "no_cuda": 74, "multi-gpu-1": 75, "nccl": 76}
    known |= {"multi-gpu-2": 77, "skipIfRocm": 78, "no_peer_access": 79, "multi-gpu-3": 80, "multi-gpu-8": 85}
    known |= {"generic": 86, "odd_worldsize": 87, "importerror": 88, "no_accelerator": 89}
    assert {name: TEST_SKIPS[name].exit_code for name in known} == known
    codes = [skip.exit_code for skip in TEST_SKIPS.values()]
    assert len(set(codes)) == len(codes)
    assert max(codes) < 128


def test_more_than_8_gpus_can_be_asked_for() -> None:
    for count in (9, 16, 46, 64):
        skip = TEST_SKIPS[f"multi-gpu-{count}"]
        assert skip.message == f"Need at least {count} CUDA devices"
        assert meaning_of(skip.exit_code) is not None
    assert meaning_of(TEST_SKIPS["multi-gpu-9"].exit_code) == "Need at least 9 CUDA devices"
    with pytest.raises(KeyError):
        TEST_SKIPS["nothing"]


@pytest.mark.parametrize("num_ranks", [9, pytest.param(48, marks=pytest.mark.slow)])
def test_a_gpu_skip_in_a_rank_works_beyond_8_ranks(num_ranks: int) -> None:
    class Case(MultiProcessTestCase):
        @property
        def world_size(self) -> int:
            return num_ranks

        def setUp(self) -> None:
            super().setUp()
            self._spawn_processes()

        @classmethod
        def _run(cls, *_: Any, **__: Any) -> None:
            sys.exit(TEST_SKIPS[f"multi-gpu-{num_ranks}"].exit_code)

        def test_any(self) -> None: ...

    assert "test_any" in run(Case).skipped


@pytest.mark.skipif(not NO_GPU, reason="for machines without a GPU")
def test_gpu_skips_are_decided_beforehand() -> None:
    assert decided(skip_if_lt_x_gpu(2)) == "Need at least 2 CUDA devices"
    assert decided(skip_if_lt_x_gpu(2, allow_cpu=True)) is None
    assert decided(skip_if_no_gpu) == "CUDA is not available."
    assert decided(nccl_skip_if_lt_x_gpu("nccl", 1)) == "Need at least 1 CUDA device"
    assert decided(nccl_skip_if_lt_x_gpu("gloo", 1)) is None
    assert decided(require_n_gpus_for_nccl_backend(3, "nccl")) == "Need at least 3 CUDA devices"
    assert decided(require_n_gpus_for_nccl_backend(3, "gloo")) is None


def test_world_size_skips_are_decided_beforehand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    monkeypatch.setenv("BACKEND", "gloo")
    assert decided(skip_if_small_worldsize) == "Skipped due to small world size."
    assert decided(skip_if_odd_worldsize) == "Skipped due to odd world size."
    monkeypatch.setenv("WORLD_SIZE", "8")  # beats the case's
    assert decided(skip_if_small_worldsize) is None
    assert decided(skip_if_odd_worldsize) is None
    monkeypatch.setenv("WORLD_SIZE", "3")
    monkeypatch.setenv("BACKEND", "mpi")
    assert decided(skip_if_small_worldsize) is None
    assert decided(skip_if_odd_worldsize) is None


@pytest.mark.skipif(importlib.util.find_spec("transformers") is not None, reason="transformers is installed")
def test_a_missing_import_is_known_beforehand() -> None:
    assert decided(import_transformers_or_skip()) == "Test skipped due to missing import"


def test_questions_of_stacked_decorators_are_all_asked() -> None:
    def stack(test: Callable[..., Any]) -> Callable[..., Any]:
        return skip_if_lt_x_gpu(0, allow_cpu=True)(skip_if_lt_x_gpu(99)(test))

    assert decided(stack) == "Need at least 99 CUDA devices"


def test_called_directly_they_leave_with_the_code() -> None:
    with pytest.raises(SystemExit) as leaving:
        skip_if_lt_x_gpu(5)(lambda self: None)(object())
    assert leaving.value.code == 82 or torch.cuda.device_count() >= 5


def test_a_case_may_handle_the_skip_itself() -> None:
    told: list[str] = []

    class Handling:
        def _handle_test_skip(self, message: str) -> None:
            told.append(message)

    case = Handling()
    test = skip_if_lt_x_gpu(99)(lambda self: pytest.fail("ran"))
    assert reason_to_skip(case, test) is None
    test(case)
    assert told == ["Need at least 99 CUDA devices"]


@pytest.mark.parametrize(
    ("device", "is_skipped"), [("cpu", False), ("cuda", torch.cuda.device_count() < 4), (None, False)]
)
def test_a_world_size_is_no_demand_for_gpus_on_cpus(device: str | None, is_skipped: bool) -> None:
    class Case:
        device_type = device

        @requires_world_size(4)
        def test_something(self) -> None: ...

        @property
        def _testMethodName(self) -> str:
            return "test_something"

    case = Case()
    if device is None and not NO_GPU:
        pytest.skip("for machines without a GPU")
    assert (reason_to_skip(case, case.test_something) is not None) == is_skipped
    assert get_required_world_size(case, 2) == 4


def test_a_required_world_size_makes_as_many_ranks() -> None:
    sizes: list[int] = []

    class Case(MultiProcessTestCase):
        device_type = "cpu"

        @property
        def world_size(self) -> int:
            return get_required_world_size(self, 2)

        def setUp(self) -> None:
            super().setUp()
            self._spawn_processes()

        def _start_processes(self, proc: Callable[..., Any]) -> None:
            super()._start_processes(proc)
            sizes.append(len(self.processes))

        @requires_world_size(3)
        def test_three(self) -> None:
            assert self.world_size == 3

        def test_two(self) -> None:
            assert self.world_size == 2

    assert run(Case).passed == ["test_three", "test_two"]
    assert sizes == [3, 2]


def test_requirements_are_decided_when_the_test_is_defined() -> None:
    def is_skipped(decorator: Callable[..., Any]) -> bool:
        class Case(unittest.TestCase):
            @decorator
            def test_any(self) -> None: ...

        return bool(run(Case).skipped)

    assert is_skipped(requires_gloo()) != dist.is_gloo_available()
    assert is_skipped(requires_mpi()) != dist.is_mpi_available()
    assert is_skipped(requires_accelerator_dist_backend(["nothing"]))
    assert not is_skipped(skip_if_win32())
    assert not is_skipped(requires_nccl_version((99, 0), "none is so new")) or not NO_GPU
    assert not is_skipped(skip_if_rocm_multiprocess) or torch.version.hip is not None
