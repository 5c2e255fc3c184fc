"""Copies of tensors on several devices."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from phalanx.devices.comm.coalescing import buffers, flatten, flatten_sparse, unflatten, unflatten_sparse
from phalanx.devices.comm.placement import OUTPUT_ELSEWHERE, AnyDevice, device_type_of, devices_named, require_on_device

BUFFER_BYTES = 10 * 1024 * 1024


def broadcast(
    tensor: torch.Tensor, devices: Iterable[AnyDevice] | None = None, *, out: Sequence[torch.Tensor] | None = None
) -> tuple[torch.Tensor, ...]:
    """Return the tensor on each device; where it lies already, the tensor itself. Gradients flow back, summed.

    Args:
        tensor: On the CPU or a device.
        devices: Devices or their numbers.
        out: Instead of devices: tensors to fill and return.

    Raises:
        RuntimeError: Both or neither of devices and out, or a tensor of out that does not fit.
    """
    if (devices is None) == (out is None):
        raise RuntimeError(
            f"Exactly one of 'devices' and 'out' must be specified, but got devices={devices} and out={out}"
        )
    if out is not None:
        return tuple(copy_into(tensor, out))
    return tuple(copies(tensor, devices_named(devices or (), [tensor])))


def copies(tensor: torch.Tensor, devices: Sequence[torch.device]) -> list[torch.Tensor]:
    """Return the tensor on each device, itself where it lies already."""
    return [tensor if device == tensor.device else tensor.to(device, non_blocking=True) for device in devices]


def copy_into(tensor: torch.Tensor, out: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
    """Fill tensors on devices with the values of one.

    Raises:
        RuntimeError: One is not on a device, or has another shape (torch's words).
    """
    require_on_device(out, device_type_of([tensor, *out]), OUTPUT_ELSEWHERE)
    for index, target in enumerate(out):
        if target.shape != tensor.shape:
            raise RuntimeError(
                f"Expected all output tensors to have same shape as the source tensor {list(tensor.shape)}, "
                f"but output tensor at index {index} has shape {list(target.shape)}"
            )
    for target in out:
        target.copy_(tensor, non_blocking=True)
    return out


def broadcast_coalesced(
    tensors: Sequence[torch.Tensor], devices: Iterable[AnyDevice], buffer_size: int = BUFFER_BYTES
) -> tuple[list[torch.Tensor], ...]:
    """Return, for each device, copies of all tensors, made with one transfer per buffer.

    The first device is the one the tensors lie on: it gets the tensors themselves. All others are new, without
    history and with version counters of their own.

    Args:
        tensors: Dense and sparse, of any types, all on the first device.
        devices: Devices or their numbers.
        buffer_size: Bytes that travel together at most, unless one tensor alone is larger.

    Raises:
        RuntimeError: A tensor is not on the first device (torch's words).
    """
    return tuple(coalesced_copies(tensors, devices_named(devices, tensors), buffer_size))


def coalesced_copies(
    tensors: Sequence[torch.Tensor], devices: Sequence[torch.device], buffer_bytes: int
) -> list[list[torch.Tensor]]:
    """Do what broadcast_coalesced does, for torch.device objects.

    Raises:
        RuntimeError: A tensor is not on the first device (torch's words).
    """
    if not devices:
        raise RuntimeError("Expected at least one device to broadcast to")
    if any(tensor.device != devices[0] for tensor in tensors):
        raise RuntimeError(f"All tensors must be on devices[0]: {devices[0].index}")
    outputs = [list(tensors), *(list(tensors) for _ in devices[1:])]
    with torch.no_grad():
        for positions in buffers(tensors, buffer_bytes):
            together = [tensors[position] for position in positions]
            for replica, pieces in zip(outputs[1:], _sent(together, devices[1:]), strict=True):
                for position, piece in zip(positions, pieces, strict=True):
                    replica[position] = piece
    return outputs


def _sent(tensors: Sequence[torch.Tensor], devices: Sequence[torch.device]) -> list[list[torch.Tensor]]:
    if tensors[0].is_sparse:
        both = [_fresh_copies(flat, devices) for flat in flatten_sparse(tensors)]
        return [unflatten_sparse(indices, values, tensors) for indices, values in zip(*both, strict=True)]
    return [unflatten(flat, tensors) for flat in _fresh_copies(flatten(tensors), devices)]


def _fresh_copies(flat: torch.Tensor, devices: Sequence[torch.device]) -> list[torch.Tensor]:
    # A device that is named twice gets two copies, which can be written to independently.
    return [flat.to(device, non_blocking=True, copy=True) for device in devices]
