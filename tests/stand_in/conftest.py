from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

import phalanx
from phalanx.torch_backend.untyped import dist
from phalanx.virtual_gpus.building import built_library


@pytest.fixture(scope="session", autouse=True)
def _devices_are_built() -> None:
    """Build the devices' library before ranks have to wait for it."""
    built_library()


@pytest.fixture
def gpus(rank: int, world_size: int) -> int:
    """As many virtual GPUs as ranks. What needs `rank` runs on the ranks alone: pytest itself gets no devices."""
    phalanx.virtual_devices(world_size, face="cuda")
    return world_size


@pytest.fixture
def nccl(gpus: int, rank: int) -> Iterator[torch.device]:
    """A default group of "nccl", each rank on a GPU of its own; the value is that GPU."""
    with phalanx.stand_in_for("nccl"):
        torch.cuda.set_device(rank)
        dist.init_process_group("nccl")
        yield torch.device("cuda", rank)
        if dist.is_initialized():
            dist.destroy_process_group()
