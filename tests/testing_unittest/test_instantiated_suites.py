"""Suites whose tests torch's own tools make: one per device, one per parameter."""

from __future__ import annotations

import importlib
from typing import Any

import torch

from phalanx.testing.unittest import (
    DistributedTestBase,
    MultiProcContinuousTest,
    MultiThreadedTestCase,
    skip_if_lt_x_gpu,
)
from phalanx.torch_backend.untyped import dist

common_utils: Any = importlib.import_module("torch.testing._internal.common_utils")
common_device_type: Any = importlib.import_module("torch.testing._internal.common_device_type")


def add_up(case: Any, count: int, device: str) -> None:
    tensor = torch.ones(count, device=device)
    dist.all_reduce(tensor)
    case.assertEqual(tensor, torch.full((count,), 2.0))  # noqa: PT009


class TestProcesses(DistributedTestBase):
    @property
    def world_size(self) -> int:
        return 2

    @common_utils.parametrize("count", [1, 2])  # type: ignore[untyped-decorator]
    def test_sum(self, device: str, count: int) -> None:
        self.create_pg(device)
        add_up(self, count, device)

    @skip_if_lt_x_gpu(99)
    def test_many_gpus(self, device: str) -> None: ...


class TestContinuous(MultiProcContinuousTest):
    world_size = 2

    @classmethod
    def backend_str(cls) -> str | None:
        return "gloo"

    @common_utils.parametrize("count", [1, 2])  # type: ignore[untyped-decorator]
    def test_sum(self, device: str, count: int) -> None:
        add_up(self, count, device)


class TestThreads(MultiThreadedTestCase):
    @property
    def world_size(self) -> int:
        return 2

    def setUp(self) -> None:
        super().setUp()
        self._spawn_threads()

    @common_utils.parametrize("count", [1, 2])  # type: ignore[untyped-decorator]
    def test_sum(self, count: int) -> None:
        add_up(self, count, "cpu")


for case in (TestProcesses, TestContinuous):
    common_device_type.instantiate_device_type_tests(case, globals(), only_for=["cpu"])
common_utils.instantiate_parametrized_tests(TestThreads)
del case
