from __future__ import annotations

import pytest
import torch

import phalanx
from tests.virtual_gpus.in_child import in_child, on_virtual_devices


@in_child
def test_a_seed_from_before_the_set_up_counts() -> None:
    torch.cuda.manual_seed_all(77)
    phalanx.virtual_devices(2, face="cuda")
    assert torch.cuda.initial_seed() == 77
    with torch.cuda.device(1):
        assert torch.cuda.initial_seed() == 77


@on_virtual_devices(2, face="cuda")
def test_one_seed_is_for_all_devices() -> None:
    torch.manual_seed(5)
    first = [torch.rand(3, device=f"cuda:{index}") for index in range(2)]
    torch.cuda.manual_seed_all(5)
    second = [torch.rand(3, device=f"cuda:{index}") for index in range(2)]
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    torch.cuda.seed_all()
    assert torch.cuda.initial_seed() != 5


@on_virtual_devices(2, face="cuda")
def test_states_of_all_devices_can_be_put_back() -> None:
    states = torch.cuda.get_rng_state_all()
    before = torch.rand(3, device="cuda:1")
    torch.cuda.set_rng_state_all(states)
    assert torch.equal(torch.rand(3, device="cuda:1"), before)
    torch.cuda.set_rng_state(states[1], "cuda:1")
    with torch.random.fork_rng(devices=range(2)):
        assert torch.equal(torch.rand(3, device="cuda:1"), before)
    assert torch.equal(torch.rand(3, device="cuda:1"), before)


@on_virtual_devices(2, face="cuda")
def test_a_generator_belongs_to_its_device() -> None:
    generator = torch.Generator("cuda:1").manual_seed(3)
    first = torch.randn(3, generator=generator, device="cuda:1")
    assert torch.equal(first, torch.randn(3, generator=generator.manual_seed(3), device="cuda:1"))
    assert [own.device.index for own in torch.cuda.default_generators] == [0, 1]
    with pytest.raises(RuntimeError, match="Expected a 'cuda:0' generator"):
        torch.randn(3, generator=generator, device="cuda:0")
