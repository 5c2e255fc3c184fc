"""torch.amp.GradScaler with models on several devices."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from tests.virtual_gpus.both_faces import on_both_faces


@on_both_faces
def test_devices_with_one_index_are_one_key(device_type: str) -> None:
    tensor = torch.ones(1, device=f"{device_type}:1")
    keys = {torch.device(device_type, 1), torch.device(f"{device_type}:1"), tensor.device, tensor.clone().device}
    assert len(keys) == 1


@on_both_faces
def test_scale_works_on_nested_outputs_of_two_devices(device_type: str) -> None:
    scaler = torch.amp.GradScaler(device_type, init_scale=2.0)
    one, zero = (torch.full((1,), 4.0, device=f"{device_type}:{index}") for index in (1, 0))
    nested: Any = [one, (zero, [one])]  # deeper than the annotation allows
    first, (second, [third]) = scaler.scale(nested)
    assert [tensor.item() for tensor in (first, second, third)] == [8, 8, 8]
    assert [tensor.device.index for tensor in (first, second, third)] == [1, 0, 1]
    assert scaler._scale is not None
    assert scaler._scale.device == one.device


def _models(device_type: str) -> list[nn.Linear]:
    models = []
    for index in (0, 1):
        torch.manual_seed(index)
        models.append(nn.Linear(4, 4).to(f"{device_type}:{index}"))
    return models


def _run(device_type: str, scaler: torch.amp.GradScaler) -> list[nn.Linear]:
    """Train two models for four iterations; the second one's gradients overflow in iteration 2."""
    models = _models(device_type)
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in models]
    inputs = torch.arange(8.0).view(2, 4) / 8
    for iteration in range(4):
        outputs = [model(inputs.to(f"{device_type}:{index}")) for index, model in enumerate(models)]
        losses = [outputs[0].sum() + outputs[1].to(f"{device_type}:0").sum() * 0.5, outputs[1].square().sum()]
        for optimizer in optimizers:
            optimizer.zero_grad()
        for index, loss in enumerate(losses):
            scaler.scale(loss).backward(retain_graph=index == 0)
        if iteration == 2 and scaler.is_enabled():
            assert models[1].weight.grad is not None
            models[1].weight.grad.fill_(float("inf"))
        scaler.unscale_(optimizers[0])
        if scaler.is_enabled():
            found = scaler._per_optimizer_states[id(optimizers[0])]["found_inf_per_device"]
            assert {device.index for device in found} == {0}
        for optimizer in optimizers:
            if scaler.is_enabled() or not (iteration == 2 and optimizer is optimizers[1]):
                scaler.step(optimizer)
        scaler.update()
    return models


@pytest.mark.slow
@on_both_faces
def test_an_overflow_on_one_device_skips_only_its_optimizer(device_type: str) -> None:
    scaler = torch.amp.GradScaler(device_type, init_scale=128.0, growth_factor=2.0, growth_interval=1)
    scaled = _run(device_type, scaler)
    assert scaler.get_scale() == 128 * 2**3 * 0.5
    disabled = torch.amp.GradScaler(device_type, enabled=False)
    control = _run(device_type, disabled)
    assert disabled.get_scale() == 1
    for model, reference in zip(scaled, control, strict=True):
        assert torch.allclose(model.weight, reference.weight, rtol=1e-5, atol=1e-7)


@pytest.mark.slow
@on_both_faces
def test_autocast_and_scaler_train_across_devices(device_type: str) -> None:
    torch.manual_seed(0)
    front = nn.Linear(8, 16).to(f"{device_type}:0")
    back = nn.Linear(16, 1).to(f"{device_type}:1")
    optimizer = torch.optim.Adam([*front.parameters(), *back.parameters()], lr=0.02)
    scaler = torch.amp.GradScaler(device_type)
    batch = torch.randn(16, 8)
    losses = []
    for _ in range(8):
        optimizer.zero_grad()
        with torch.autocast(device_type, dtype=torch.bfloat16):
            hidden = front(batch.to(f"{device_type}:0"))
            assert hidden.dtype == torch.bfloat16
            output = back(hidden.relu().to(f"{device_type}:1"))
        loss = (output.float().squeeze() - batch.sum(1).to(f"{device_type}:1")).square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
