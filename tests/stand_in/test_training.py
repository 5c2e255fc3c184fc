"""A model that trains through "nccl" on virtual GPUs ends where it ends on the CPU."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

from phalanx.torch_backend.untyped import dist

_STEPS = 4
_RANKS = 4


def _model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))


def _batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(step)
    return torch.randn(4 * _RANKS, 6, generator=generator), torch.randn(4 * _RANKS, 3, generator=generator)


def _reference() -> list[torch.Tensor]:
    model = _model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(_STEPS):
        inputs, targets = _batch(step)
        optimizer.zero_grad()
        nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
    return [parameter.detach() for parameter in model.parameters()]


@pytest.mark.slow
@pytest.mark.ranks(_RANKS)
def test_ddp_ends_where_the_cpu_ends(nccl: torch.device, rank: int) -> None:
    model = nn.parallel.DistributedDataParallel(_model().to(nccl), device_ids=[rank])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(_STEPS):
        inputs, targets = (whole.chunk(_RANKS)[rank].to(nccl) for whole in _batch(step))
        optimizer.zero_grad()
        nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
    for trained, expected in zip(model.parameters(), _reference(), strict=True):
        torch.testing.assert_close(trained.detach().cpu(), expected)


@pytest.mark.slow
@pytest.mark.ranks(_RANKS)
def test_fully_sharded_ends_where_the_cpu_ends(nccl: torch.device, rank: int) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import DTensor

    mesh = init_device_mesh("cuda", (_RANKS,))
    model = _model().to(nccl)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for step in range(_STEPS):
        inputs, targets = (whole.chunk(_RANKS)[rank].to(nccl) for whole in _batch(step))
        optimizer.zero_grad()
        nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
    for trained, expected in zip(model.parameters(), _reference(), strict=True):
        assert isinstance(trained, DTensor)
        torch.testing.assert_close(trained.full_tensor().detach().cpu(), expected)


@pytest.mark.slow
@pytest.mark.ranks(2)
def test_a_hook_that_compresses_runs_in_order(nccl: torch.device, rank: int) -> None:
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    model = nn.parallel.DistributedDataParallel(_model().to(nccl), device_ids=[rank])
    model.register_comm_hook(None, default_hooks.fp16_compress_hook)
    model(torch.full((2, 6), float(rank), device=nccl)).sum().backward()
    sums = [torch.empty(1, device=nccl) for _ in range(2)]
    total = sum(p.grad.sum() for p in model.parameters() if p.grad is not None)
    assert isinstance(total, torch.Tensor)
    dist.all_gather(sums, total.reshape(1))
    assert torch.equal(sums[0], sums[1])


@pytest.mark.slow
@pytest.mark.ranks(2)
def test_ddp_takes_the_hook_for_bfloat16(nccl: torch.device, rank: int) -> None:
    model = nn.parallel.DistributedDataParallel(_model().to(nccl), device_ids=[rank])
    model.register_comm_hook(None, default_hooks.bf16_compress_hook)
    inputs, targets = (whole[: 2 * _RANKS].chunk(2)[rank].to(nccl) for whole in _batch(0))
    nn.functional.mse_loss(model(inputs), targets).backward()
    alone = _model()
    nn.functional.mse_loss(alone(_batch(0)[0][: 2 * _RANKS]), _batch(0)[1][: 2 * _RANKS]).backward()
    for parameter, expected in zip(model.parameters(), alone.parameters(), strict=True):
        assert parameter.grad is not None
        torch.testing.assert_close(parameter.grad.cpu(), expected.grad, rtol=0.05, atol=0.01)


@pytest.mark.ranks(2)
def test_other_hooks_are_checked_as_ever(nccl: torch.device, rank: int) -> None:
    def bf16_compress_hook(state: object, bucket: int) -> None:
        """Have the name, and the wrong annotation."""

    model = nn.parallel.DistributedDataParallel(_model().to(nccl), device_ids=[rank])
    with pytest.raises(ValueError, match="bucket annotation should be"):
        model.register_comm_hook(None, bf16_compress_hook)
