"""A training step of a model with 10 million parameters: alone, with DDP, with FSDP2.

What DDP adds to itself with a hook that sends nothing is communication, and waiting for the others; so is, with its
copies, what FSDP2 adds to the step alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

Prepared = tuple[Callable[..., Any], tuple[Any, ...], Callable[[], bool]]

_WIDTH, _DEPTH, _BATCH = 1600, 4, 4  # 4 layers of 2.56 million weights


def _model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Sequential(nn.Linear(_WIDTH, _WIDTH), nn.ReLU()) for _ in range(_DEPTH)))


def _batch() -> torch.Tensor:
    return torch.randn(_BATCH, _WIDTH, generator=torch.Generator().manual_seed(dist.get_rank()))


def _step(model: nn.Module, batch: torch.Tensor) -> None:
    model.zero_grad()
    model(batch).square().mean().backward()


def _gradients(model: nn.Module) -> list[torch.Tensor]:
    return [parameter.grad for parameter in model.parameters() if parameter.grad is not None]


def _averages() -> list[torch.Tensor]:
    """What every rank's gradients must be after a step."""
    model = _model()
    _step(model, _batch())
    gradients = _gradients(model)
    for gradient in gradients:
        dist.all_reduce(gradient)
        gradient.div_(dist.get_world_size())
    return gradients


def _are_close(given: list[torch.Tensor], wanted: list[torch.Tensor]) -> bool:
    return len(given) == len(wanted) and all(
        torch.allclose(one, other, rtol=1e-4, atol=1e-7) for one, other in zip(given, wanted, strict=True)
    )


def local_step() -> Prepared:
    """Return the step without any communication."""
    model = _model()
    return _step, (model, _batch()), lambda: len(_gradients(model)) == 2 * _DEPTH


def ddp_step() -> Prepared:
    """Return the step with torch's DistributedDataParallel."""
    model = _model()
    wrapped = nn.parallel.DistributedDataParallel(model)
    return _step, (wrapped, _batch()), lambda: _are_close(_gradients(model), _averages())


def silent_ddp_step() -> Prepared:
    """Return the step with DistributedDataParallel and its copies, but without communication."""
    from torch.distributed.algorithms.ddp_comm_hooks.debugging_hooks import noop_hook

    model = _model()
    wrapped = nn.parallel.DistributedDataParallel(model)
    wrapped.register_comm_hook(None, noop_hook)
    return _step, (wrapped, _batch()), lambda: len(_gradients(model)) == 2 * _DEPTH


def fsdp_step() -> Prepared:
    """Return the step with torch's fully_shard, one unit a layer."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model = _model()
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)

    def is_right() -> bool:
        gradients: list[Any] = _gradients(model)
        return _are_close([gradient.full_tensor() for gradient in gradients], _averages())

    return _step, (model, _batch()), is_right
