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
        _copy_into(tensor, out)
        return tuple(out)
    targets = devices_named(devices or (), [tensor])
    return tuple(tensor if device == tensor.device else tensor.to(device, non_blocking=True) for device in targets)


def _copy_into(tensor: torch.Tensor, out: Sequence[torch.Tensor]) -> None:
    require_on_device(out, device_type_of([tensor, *out]), OUTPUT_ELSEWHERE)
    for index, target in enumerate(out):
        if target.shape != tensor.shape:
            raise RuntimeError(
                f"Expected all output tensors to have same shape as the source tensor {list(tensor.shape)}, "
                f"but output tensor at index {index} has shape {list(target.shape)}"
            )
    for target in out:
        target.copy_(tensor, non_blocking=True)


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
        RuntimeError: A tensor is not on the first device (torch's message).
    """
    targets = devices_named(devices, tensors)
    if not targets:
        raise RuntimeError("Expected at least one device to broadcast to")
    if any(tensor.device != targets[0] for tensor in tensors):
        raise RuntimeError(f"All tensors must be on devices[0]: {targets[0].index}")
    outputs = [list(tensors), *(list(tensors) for _ in targets[1:])]
    with torch.no_grad():
        for positions in buffers(tensors, buffer_size):
            together = [tensors[position] for position in positions]
            for replica, pieces in zip(outputs[1:], _sent(together, targets[1:]), strict=True):
                for position, piece in zip(positions, pieces, strict=True):
                    replica[position] = piece
    return tuple(outputs)


def _sent(tensors: Sequence[torch.Tensor], devices: Sequence[torch.device]) -> list[list[torch.Tensor]]:
    if tensors[0].is_sparse:
        both = [_fresh_copies(flat, devices) for flat in flatten_sparse(tensors)]
        return [unflatten_sparse(indices, values, tensors) for indices, values in zip(*both, strict=True)]
    return [unflatten(flat, tensors) for flat in _fresh_copies(flatten(tensors), devices)]


def _fresh_copies(flat: torch.Tensor, devices: Sequence[torch.device]) -> list[torch.Tensor]:
    # A device that is named twice gets two copies, which can be written to independently.
    return [flat.to(device, non_blocking=True, copy=True) for device in devices]
