from __future__ import annotations

import subprocess
import sys

import pytest
import torch

pytestmark = pytest.mark.slow

_PASSING = (
    "test_all_reduce_sum",
    "test_broadcast_full_group",
    "test_isend",
    "test_all_gather_coalesced_with_empty",
    "test_scatter_checks",
    "test_monitored_barrier_gloo",
)
_SKIPPED = ("test_all_gather_group", "test_ddp_hook_parity_post_localSGD", "test_reduce_group_min")


def outcomes(module: str, *arguments: str) -> list[str]:
    """Run a module of this folder and return what it says of its tests."""
    command = [sys.executable, "-m", f"tests.testing_unittest.{module}", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=220)
    assert done.returncode == 0, done.stderr
    found = [line.removeprefix("outcome: ") for line in done.stdout.splitlines() if line.startswith("outcome: ")]
    print(done.stdout[-4000:])
    return found


def test_torchs_own_distributed_tests_run_on_our_ranks() -> None:
    expected = [f"passed {name}" for name in _PASSING] + [f"skipped {name}" for name in _SKIPPED]
    assert outcomes("torchs_own_tests", *_PASSING, *_SKIPPED) == expected


def test_suites_on_torchs_base_classes_run_on_our_ranks() -> None:
    assert outcomes("torchs_base_classes") == [
        "Fsdp ['test_subtests', 'test_training'] ['test_gpus']",
        "FsdpOnThreads ['test_forward_and_backward'] []",
        "DTensors ['test_multiply'] []",
        "DTensorsOnThreads ['test_multiply'] []",
        "DTensorsContinuous ['test_multiply', 'test_multiply_again'] []",
        "DTensorsWithLocalTensor ['test_multiply'] []",
    ]


def test_compiled_code_runs_on_our_ranks() -> None:
    assert outcomes("compiled_cases") == [
        "OneRank ['test_compiled']",
        "SeveralRanks ['test_compiled', 'test_fake_group']",
    ]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_forked_ranks_can_use_the_gpu() -> None:
    assert outcomes("gpu_cases") == [
        "forked",
        "OnGpu ['test_cuda_works_on_ranks'] []",
        "OnGpuContinuous ['test_cuda_works_on_ranks'] []",
    ]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_ranks_are_started_afresh_where_the_main_process_uses_cuda() -> None:
    assert outcomes("gpu_cases", "used") == [
        "started",
        "OnGpu ['test_cuda_works_on_ranks'] []",
        "OnGpuContinuous ['test_cuda_works_on_ranks'] []",
    ]
