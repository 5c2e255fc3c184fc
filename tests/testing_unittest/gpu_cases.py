"""Ranks that share a GPU, in a process of its own: with "used" as argument the main process has used CUDA itself."""

from __future__ import annotations

import sys

import torch

from phalanx.testing.unittest import MultiProcContinuousTest, MultiProcessTestCase, skip_if_lt_x_gpu
from phalanx.testing.unittest.rank_process import ForkedProcess
from phalanx.torch_backend.untyped import dist
from tests.testing_unittest.inner_suites import run


def add_up() -> None:
    tensor = torch.ones(4, device="cuda")
    on_host = (tensor * 2).cpu()
    dist.all_reduce(on_host)
    assert on_host.tolist() == [4, 4, 4, 4]


class OnGpu(MultiProcessTestCase):
    @property
    def world_size(self) -> int:
        return 2

    def setUp(self) -> None:
        super().setUp()
        self._spawn_processes()
        is_forked = isinstance(self.processes[0], ForkedProcess)
        print("outcome: forked" if is_forked else "outcome: started", flush=True)

    @skip_if_lt_x_gpu(1)
    def test_cuda_works_on_ranks(self) -> None:
        dist.init_process_group("gloo", init_method=f"file://{self.file_name}", rank=self.rank, world_size=2)
        add_up()


class OnGpuContinuous(MultiProcContinuousTest):
    world_size = 2

    @classmethod
    def backend_str(cls) -> str | None:
        return "gloo"

    @skip_if_lt_x_gpu(1)
    def test_cuda_works_on_ranks(self) -> None:
        add_up()


if __name__ == "__main__":
    if sys.argv[1:] == ["used"]:
        torch.ones(1, device="cuda")
    for case in (OnGpu, OnGpuContinuous):
        results = run(case, timeout_s=100)
        print("outcome:", case.__name__, results.passed, list(results.skipped))
        print("\n".join([*results.errors.values(), *results.failures.values()]))
