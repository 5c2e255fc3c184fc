"""Save and restore the random states of all devices at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from phalanx.errors import UsageError


def get_rng_state_all() -> list[torch.Tensor]:
    """Return the random states of all devices of the accelerator, real or virtual; an empty list if there are none."""
    return [torch.get_device_module().get_rng_state(index) for index in range(torch.accelerator.device_count())]


def set_rng_state_all(states: Sequence[torch.Tensor]) -> None:
    """Put all devices into the states that get_rng_state_all() returned.

    Raises:
        UsageError: There are more or fewer states than devices.
    """
    num_devices = torch.accelerator.device_count()
    if len(states) != num_devices:
        raise UsageError(
            f"there are {num_devices} devices here, and {len(states)} random states to put them into\n"
            "  do       restore on as many devices as the states were taken from, or set them one by one: "
            "torch.cuda.set_rng_state(state, index)"
        )
    for index, state in enumerate(states):
        torch.get_device_module().set_rng_state(state, index)


@contextmanager
def fork_rng() -> Iterator[None]:
    """Let a block draw random numbers on the CPU and all devices; afterwards their states are as before.

    torch.random.fork_rng does the same, but warns if you do not name the devices.
    """
    with torch.random.fork_rng(devices=range(torch.accelerator.device_count())):
        yield
