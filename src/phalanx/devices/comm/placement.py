"""Turn what a caller calls a device into a torch.device, and find the device type that a number refers to."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from phalanx.errors import UsageError

AnyDevice = torch.device | str | int

OUTPUT_ELSEWHERE = (
    "Expected all output tensors to be {kind} tensors, but output tensor at index {index} has device '{device}'"
)
INPUT_ELSEWHERE = "Expected all input tensors to be {kind} tensors, but tensor at index {index} has device {device}"


def active_device_type() -> str:
    """Return the device type that plain device numbers mean when no tensor says otherwise.

    Raises:
        UsageError: The process has no accelerator, real or virtual.
    """
    accelerator = torch.accelerator.current_accelerator()
    if accelerator is None:
        raise UsageError(
            "there is no accelerator here, so a device number means nothing\n"
            "  do       call phalanx.virtual_devices(4) first, or name the devices, e.g. 'cuda:1'"
        )
    return accelerator.type


def device_type_of(tensors: Iterable[torch.Tensor]) -> str:
    """Return the type of the first tensor that is not on the CPU; of the accelerator when all are."""
    for tensor in tensors:
        if tensor.device.type != "cpu":
            return tensor.device.type
    return active_device_type()


def devices_named(devices: Iterable[AnyDevice], tensors: Sequence[torch.Tensor]) -> list[torch.device]:
    """Return the devices; numbers take the device type of the tensors.

    Raises:
        ValueError: One is the CPU, or has no index (torch's message).
        RuntimeError: One has a negative index (torch's message).
    """
    return [_named(device, tensors) for device in devices]


def _named(device: AnyDevice, tensors: Sequence[torch.Tensor]) -> torch.device:
    if isinstance(device, int):
        return numbered(device_type_of(tensors), device)
    found = torch.device(device)
    if found.type == "cpu":
        raise ValueError(f"Expected a non cpu device, but got: {found}")
    if found.index is None:
        raise ValueError(f"Expected a torch.device with a specified index or an integer, but got:{found}")
    return found


def numbered(device_type: str, index: int) -> torch.device:
    """Return one device of a type.

    Raises:
        RuntimeError: The index is negative (torch's message).
    """
    if index < 0:
        raise RuntimeError(f"Expected non-negative device index, but got {index}")
    return torch.device(device_type, index)


def wrapped_dim(tensor: torch.Tensor, dim: int) -> int:
    """Return a dimension counted from the front.

    Raises:
        IndexError: The tensor does not have it (torch's message).
    """
    tensor.size(dim)
    return dim % tensor.dim()


def current_device(device_type: str) -> torch.device:
    """Return the device of a type that is current in this thread."""
    return torch.device(device_type, torch.get_device_module(device_type).current_device())


def require_on_device(tensors: Sequence[torch.Tensor], device_type: str, message: str) -> None:
    """Check that every tensor is on a device of one type.

    Args:
        tensors: What to check.
        device_type: Where they have to be.
        message: torch's message for one that is not, with the fields kind, index and device.

    Raises:
        RuntimeError: One is elsewhere (torch's message).
    """
    for index, tensor in enumerate(tensors):
        if tensor.device.type != device_type:
            kind = "CUDA" if device_type == "cuda" else device_type
            raise RuntimeError(message.format(kind=kind, index=index, device=tensor.device))
