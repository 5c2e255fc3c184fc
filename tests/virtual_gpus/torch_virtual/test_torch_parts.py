"""The parts of torch that serve any device type find what they need in torch.virtual."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from torch import nn

from tests.virtual_gpus.in_child import on_virtual_devices


@on_virtual_devices(2)
def test_autocast_and_the_default_device_work() -> None:
    matrix = torch.randn(4, 4, device="virtual:1")
    for dtype in (torch.bfloat16, torch.float16):
        with torch.autocast("virtual", dtype=dtype):
            assert (matrix @ matrix).dtype == dtype
            assert (matrix @ matrix).softmax(0).dtype == torch.float32
    assert (matrix @ matrix).dtype == torch.float32
    with torch.device("virtual:1"):
        assert nn.Linear(2, 2).weight.device == torch.device("virtual:1")
    module = nn.Linear(2, 2).virtual(1)  # type: ignore[operator]
    assert module.weight.device.index == 1


@on_virtual_devices(2)
def test_the_generators_of_the_devices_are_those_torch_draws_from() -> None:
    virtual = torch.get_device_module("virtual")
    with virtual.device(1):
        virtual.manual_seed(5)
        assert virtual.initial_seed() == virtual.default_generators[1].initial_seed() == 5
        first = torch.rand(3, device="virtual")
        virtual.manual_seed(5)
        assert torch.equal(torch.rand(3, device="virtual"), first)
    own = torch.Generator("virtual:1").manual_seed(5)
    assert torch.equal(torch.rand(3, device="virtual:1", generator=own), first)
    states = virtual.get_rng_state_all()
    drawn = torch.rand(3, device="virtual:0")
    virtual.set_rng_state_all(states)
    assert torch.equal(torch.rand(3, device="virtual:0"), drawn)
    virtual.seed()
    virtual.seed_all()
    assert virtual.default_generators[0].initial_seed() == virtual.default_generators[1].initial_seed()
    assert states[0].numel() == 16


@pytest.mark.slow
@on_virtual_devices(2)
def test_fsdp2_and_dtensor_find_their_device_module() -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import Shard, distribute_tensor, rand
    from torch.testing._internal.distributed.fake_pg import FakeStore

    dist.init_process_group("cpu:fake,virtual:fake", rank=0, world_size=2, store=FakeStore())
    try:
        mesh = init_device_mesh("virtual", (2,))
        sharded = distribute_tensor(torch.randn(8, 4), mesh, [Shard(0)])
        assert sharded.to_local().device == torch.device("virtual:0")
        assert rand(8, 4, device_mesh=mesh, placements=[Shard(0)]).to_local().shape == (4, 4)
        # fully_shard can't move a model from the CPU to a device type that torch has not built in.
        model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)).to("virtual")
        for layer in model:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
        optimizer = torch.optim.AdamW(model.parameters())
        model(torch.randn(2, 8)).sum().backward()
        optimizer.step()
        assert all(parameter.device.type == "virtual" for parameter in model.parameters())
    finally:
        dist.destroy_process_group()
