"""Suites built on base classes that come from torch itself, run on our ranks in a process of its own."""

from __future__ import annotations

import copy
import importlib
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard, distribute_tensor

from phalanx.testing.unittest import skip_if_lt_x_gpu, take_torchs_place
from tests.testing_unittest.inner_suites import Results, run

take_torchs_place()
common_fsdp: Any = importlib.import_module("torch.testing._internal.common_fsdp")
common_dtensor: Any = importlib.import_module("torch.testing._internal.distributed._tensor.common_dtensor")


def train(case: Any) -> None:
    """Compare a model in shards with the same model as a whole."""
    torch.manual_seed(0)
    whole = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4))
    shards = copy.deepcopy(whole)
    fully_shard(shards, mesh=init_device_mesh("cpu", (2,)))
    for model in (whole, shards):
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        for step in range(3):
            optimizer.zero_grad()
            model(torch.ones(4, 8) * step).sum().backward()
            optimizer.step()
    of_shards: Any
    for of_shards, of_whole in zip(shards.parameters(), whole.parameters(), strict=True):
        case.assertEqual(of_shards.full_tensor(), of_whole)  # noqa: PT009


class Fsdp(common_fsdp.FSDPTest):  # type: ignore[misc]
    # FSDPTest's own asks for GPUs even where there are none; the one of its mixin does not.
    _run = common_fsdp.FSDPTestMixin.__dict__["_run"]

    @property
    def world_size(self) -> int:
        return 2

    def test_training(self) -> None:
        train(self)

    def test_subtests(self) -> None:
        self.run_subtests({"a": [1, 2]}, lambda a: None)

    @skip_if_lt_x_gpu(99)
    def test_gpus(self) -> None: ...


class FsdpOnThreads(common_fsdp.FSDPTestMultiThread):  # type: ignore[misc]
    @property
    def world_size(self) -> int:
        return 2

    def test_forward_and_backward(self) -> None:
        model = nn.Linear(8, 8)
        fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
        model(torch.ones(4, 8)).sum().backward()
        assert model.weight.grad is not None


def multiply(case: Any) -> None:
    full = torch.arange(16.0).reshape(4, 4)
    spread: Any = distribute_tensor(full, case.build_device_mesh(), [Shard(0)])
    case.assertEqual((spread @ spread).full_tensor(), full @ full)  # noqa: PT009


class DTensors(common_dtensor.DTensorTestBase):  # type: ignore[misc]
    @common_dtensor.with_comms  # type: ignore[untyped-decorator]
    def test_multiply(self) -> None:
        multiply(self)


class DTensorsOnThreads(common_dtensor.DTensorOpTestBase):  # type: ignore[misc]
    def test_multiply(self) -> None:
        multiply(self)


class DTensorsContinuous(common_dtensor.DTensorContinuousTestBase):  # type: ignore[misc]
    world_size = 4

    def test_multiply(self) -> None:
        multiply(self)

    def test_multiply_again(self) -> None:
        multiply(self)


LocalDTensors = common_dtensor.create_local_tensor_test_class(DTensors)

if __name__ == "__main__":
    for case in (Fsdp, FsdpOnThreads, DTensors, DTensorsOnThreads, DTensorsContinuous, LocalDTensors):
        results: Results = run(case)
        print("outcome:", case.__name__, results.passed, list(results.skipped))
        print("\n".join([*results.errors.values(), *results.failures.values()]))
