from __future__ import annotations

import pytest
import torch

from phalanx import UsageError
from phalanx.devices.random_state import fork_rng, get_rng_state_all, set_rng_state_all
from tests.virtual_gpus.both_faces import NUM_DEVICES, on_both_faces


def _draw(device_type: str) -> list[list[float]]:
    return [torch.randn(3, device=f"{device_type}:{index}").tolist() for index in range(NUM_DEVICES)]


@on_both_faces
def test_states_of_all_devices_are_saved_restored_and_forked(device_type: str) -> None:
    _draw(device_type)
    states = get_rng_state_all()
    assert len(states) == NUM_DEVICES
    first = _draw(device_type)
    set_rng_state_all(states)
    assert _draw(device_type) == first
    assert _draw(device_type) != first

    set_rng_state_all(states)
    on_cpu = torch.get_rng_state()
    with fork_rng():
        assert _draw(device_type) == first
        torch.manual_seed(3)
    assert torch.equal(torch.get_rng_state(), on_cpu)
    assert _draw(device_type) == first

    with pytest.raises(UsageError, match="there are 4 devices here, and 3 random states"):
        set_rng_state_all(states[:3])


@on_both_faces
def test_one_seed_seeds_all_devices_and_the_offset_of_each_can_be_set(device_type: str) -> None:
    module = torch.get_device_module(device_type)
    torch.manual_seed(7)
    first = _draw(device_type)
    torch.manual_seed(7)
    assert _draw(device_type) == first
    module.manual_seed_all(8)
    assert _draw(device_type) != first
    offsets = [module._get_rng_state_offset(f"{device_type}:{index}") for index in range(NUM_DEVICES)]
    module._set_rng_state_offset(100, device=f"{device_type}:1")
    assert module._get_rng_state_offset(f"{device_type}:1") == 100
    assert module._get_rng_state_offset(f"{device_type}:0") == offsets[0]


@on_both_faces
def test_torchs_fork_rng_keeps_the_states(device_type: str) -> None:
    state = get_rng_state_all()[1]
    with torch.random.fork_rng(devices=[1]):
        torch.randn(3, device=f"{device_type}:1")
    assert torch.equal(get_rng_state_all()[1], state)


@pytest.mark.slow
@on_both_faces
def test_a_checkpointed_block_draws_the_same_numbers_again(device_type: str) -> None:
    leaf = torch.ones(64, device=f"{device_type}:1", requires_grad=True)
    for use_reentrant in (True, False):
        leaf.grad = None
        dropped = torch.utils.checkpoint.checkpoint(torch.nn.functional.dropout, leaf, use_reentrant=use_reentrant)
        dropped.sum().backward()
        assert leaf.grad is not None
        assert torch.equal(leaf.grad, dropped)


def test_without_an_accelerator_there_are_no_states_but_the_cpus() -> None:
    if torch.accelerator.is_available():
        pytest.skip("this machine has an accelerator")
    assert get_rng_state_all() == []
    state = torch.get_rng_state()
    with fork_rng():
        torch.randn(1)
    assert torch.equal(torch.get_rng_state(), state)
