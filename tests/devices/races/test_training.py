"""Training on several ranks, whose libraries use streams of their own with care: no race is told."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.nn.parallel import DistributedDataParallel

import phalanx
from phalanx.devices import races
from phalanx.torch_backend.untyped import dist

pytestmark = pytest.mark.slow


@pytest.fixture
def nccl(rank: int, world_size: int) -> Iterator[int]:
    """A virtual GPU for each rank, with the detector on, and a group of "nccl"; the value is this rank's GPU."""
    phalanx.virtual_devices(world_size, face="cuda", races="raise")
    with phalanx.stand_in_for("nccl"):
        torch.cuda.set_device(rank)
        dist.init_process_group("nccl")
        yield rank
        dist.destroy_process_group()


def layers() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Sequential(nn.Linear(32, 32), nn.ReLU()) for _ in range(4))).cuda()


def data_parallel(device: int) -> nn.Module:
    return DistributedDataParallel(layers(), device_ids=[device], bucket_cap_mb=0.01, gradient_as_bucket_view=True)


def sharded(_: int) -> nn.Module:
    model = layers()
    for layer in model.children():
        fully_shard(layer)
    fully_shard(model)
    return model


def sharded_the_old_way(_: int) -> nn.Module:
    return FullyShardedDataParallel(nn.Sequential(*(FullyShardedDataParallel(layer) for layer in layers().children())))


@pytest.mark.ranks(2)
@pytest.mark.parametrize("parallel", [data_parallel, sharded, sharded_the_old_way])
def test_training_raises_nothing(nccl: int, parallel: Callable[[int], nn.Module]) -> None:
    model = parallel(nccl)
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(4, 32, device="cuda")).square().mean().backward()
        optimizer.step()
    torch.cuda.synchronize()
    assert races.seen() == []
