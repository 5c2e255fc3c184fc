"""Check that a device exists."""

from __future__ import annotations

import torch


def checked(index: int, num_devices: int) -> int:
    """Return the index if a device with it exists.

    Raises:
        torch.AcceleratorError: There is no device with this index. It is a RuntimeError, as CUDA itself raises.
    """
    if 0 <= index < num_devices:
        return index
    raise torch.AcceleratorError(
        f"CUDA error: invalid device ordinal\n"
        f"cuda:{index} is not there: {_those(num_devices)}. "
        f"Ask for {index + 1} where the virtual GPUs are set up, or use another index."
    )


def _those(num_devices: int) -> str:
    return (
        "there is one virtual GPU, cuda:0"
        if num_devices == 1
        else f"there are {num_devices} virtual GPUs, cuda:0 to cuda:{num_devices - 1}"
    )
