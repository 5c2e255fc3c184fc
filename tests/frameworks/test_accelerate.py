"""Hugging Face Accelerate trains over phalanx as one process does."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from tests.checks import equal
from tests.frameworks.launching import run_as_torchrun_would

pytest.importorskip("accelerate", reason="Accelerate is not installed: make frameworks")


def _data() -> torch.utils.data.TensorDataset:
    inputs = torch.linspace(-1, 1, 64).view(32, 2)
    return torch.utils.data.TensorDataset(inputs, inputs.sum(1, keepdim=True) * 3)


def _model() -> nn.Linear:
    torch.manual_seed(3)
    return nn.Linear(2, 1)


def _train_alone() -> list[float]:
    model = _model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        for start in range(0, 32, 8):  # two ranks with batches of four
            inputs, targets = _data()[start : start + 8]
            optimizer.zero_grad()
            nn.functional.mse_loss(model(inputs), targets).backward()
            optimizer.step()
    return [*model.weight.flatten().tolist(), *model.bias.tolist()]


def _train_with_accelerate() -> list[float]:
    from accelerate import Accelerator

    torch.distributed.init_process_group(
        "phalanx"
    )  # it knows only some backends by name, but takes a group that is there
    accelerator: Any = Accelerator(cpu=True)
    equal((accelerator.num_processes, torch.distributed.get_backend()), (2, "phalanx"))
    model = _model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = torch.utils.data.DataLoader(_data(), batch_size=4)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for _ in range(3):
        for inputs, targets in loader:
            optimizer.zero_grad()
            accelerator.backward(nn.functional.mse_loss(model(inputs), targets))
            optimizer.step()
    plain = accelerator.unwrap_model(model)
    total = accelerator.reduce(torch.ones(1))
    equal(float(total), 2.0)
    torch.distributed.destroy_process_group()
    return [*plain.weight.flatten().tolist(), *plain.bias.tolist()]


@pytest.mark.slow
def test_accelerate_trains_as_one_process_does() -> None:
    wanted = _train_alone()
    for weights in run_as_torchrun_would(2, _train_with_accelerate):
        assert weights == pytest.approx(wanted, rel=1e-5)
