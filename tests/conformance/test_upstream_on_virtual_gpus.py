"""torch's own tests on virtual GPUs: a few of each mode, and that the command notices what it should."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from phalanx.settings import copy_environment
from tests.dev import dev

pytest.importorskip("expecttest", reason="torch's tests need expecttest")
pytestmark = pytest.mark.slow

_OTHER_FILES = copy_environment().get("PYTORCH_TESTS")


def _upstream(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return dev("upstream", *arguments, **variables)


def test_tests_that_name_nccl_run_on_virtual_gpus() -> None:
    names = ("test_all_reduce_sum_cuda", "test_send_recv_nccl", "test_DistributedDataParallel_SyncBatchNorm")
    done = _upstream("--mode", "nccl", "--world", "2", *names, "test_all_reduce_sum")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Nccl does not support CPU tensors" in done.stdout
    assert done.stdout.splitlines()[-1].startswith("upstream nccl world 2: 3 passed, 1 skipped, 0 failed")


def test_tests_that_name_gloo_have_gpus_too_and_those_switched_off_run_when_forced() -> None:
    switched_off = "test_compute_bucket_assignment_by_size_sparse_error_with_logger"
    names = ("test_all_reduce_sum_cuda", "test_ddp_logging_data_gpu", switched_off)
    done = _upstream("--mode", "vgloo", "--world", "2", "--forced", *names)
    assert done.stdout.splitlines()[-1].startswith("upstream vgloo world 2: 3 passed, 0 skipped, 0 failed"), done.stdout


def test_tests_that_name_mpi_run() -> None:
    done = _upstream("--mode", "mpi", "--world", "4", "test_all_to_all", "test_all_to_all_single_unequal_split")
    assert done.stdout.splitlines()[-1].startswith("upstream mpi world 4: 2 passed, 0 skipped, 0 failed"), done.stdout


def test_a_test_that_compiles_nothing_does_not_pass() -> None:
    done = _upstream("--mode", "nccl", "test_ddp_compile_static_graph", TORCHDYNAMO_DISABLE="1")
    assert done.returncode == 1
    assert "passed vacuously: it called torch.compile and nothing was compiled" in done.stdout


def test_a_broken_engine_is_noticed() -> None:
    names = ("test_nccl_backend_bool_allreduce", "test_broadcast_cuda")
    done = _upstream("--mode", "nccl", "--mutate", "no-data", *names)
    assert done.returncode == 0, done.stdout
    assert re.search(r": 2 tests noticed, 0 did not, at least 2 have to$", done.stdout.splitlines()[-1])


@pytest.mark.skipif(_OTHER_FILES is None, reason="PYTORCH_TESTS does not say where PyTorch's sources are")
def test_the_multi_gpu_file_passes() -> None:
    done = _upstream("--mode", "multigpu", "--tests", str(_OTHER_FILES))
    last = done.stdout.splitlines()[-1]
    assert re.fullmatch(r"upstream multigpu on 4 virtual GPUs: 61 passed, 0 skipped, 0 failed in \d+ s", last)


@pytest.mark.skipif(_OTHER_FILES is None, reason="PYTORCH_TESTS does not say where PyTorch's sources are")
def test_the_file_of_the_object_oriented_api_passes() -> None:
    done = _upstream("--mode", "dist2", "--tests", str(_OTHER_FILES), "--at-least", "23")
    assert done.returncode == 0, done.stdout


def test_a_file_is_asked_for() -> None:
    done = _upstream("--mode", "multigpu")
    assert done.returncode == 1
    assert "say where PyTorch's sources are: --tests folder" in done.stderr


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    done = _upstream("--mode", "multigpu", "--tests", str(tmp_path))
    assert done.returncode == 1
    assert f"there is no test_cuda_multigpu.py in {tmp_path}" in done.stderr


_FILE = """
import os, time, unittest
import torch
from torch.testing._internal.common_distributed import MultiProcessTestCase


class Alone(unittest.TestCase):
    def test_good(self): assert torch.cuda.device_count() == 4
    def test_wrong(self): self.assertEqual(torch.ones(2, device="cuda:3").sum().item(), 3)
    def test_skips(self): self.skipTest("not today")
    def test_dies(self): os.abort()
    def test_hangs(self): time.sleep(600)


class Together(MultiProcessTestCase):
    world_size = 2
    def test_ranks(self): assert self.rank in (0, 1)
    def test_rank_1_fails(self): assert self.rank == 0
"""


def test_each_test_of_a_file_ends_for_itself(tmp_path: Path) -> None:
    (tmp_path / "test_cuda_multigpu.py").write_text(_FILE)
    done = _upstream("--mode", "multigpu", "--tests", str(tmp_path), "--timeout", "4", "-v")
    assert done.returncode == 1
    assert done.stdout.splitlines()[-1].startswith("upstream multigpu on 4 virtual GPUs: 2 passed, 1 skipped, 4 failed")
    for told in ("Alone.test_good: passed", "Together.test_ranks: passed"):
        assert told in done.stdout
    assert "skipped   1: not today" in done.stdout
    for told in ("rank 0 was killed by SIGABRT", "rank 0 did not end in time", "2.0 != 3", "rank 1 exited with 10"):
        assert told in done.stdout
