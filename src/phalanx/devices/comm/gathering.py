"""Tensors of several devices joined along a dimension on one."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from phalanx.devices.comm.placement import (
    INPUT_ELSEWHERE,
    AnyDevice,
    current_device,
    device_type_of,
    numbered,
    require_on_device,
    wrapped_dim,
)
from phalanx.devices.comm.scattering import scatter


def gather(
    tensors: Iterable[torch.Tensor],
    dim: int = 0,
    destination: AnyDevice | None = None,
    *,
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return the tensors of several devices joined along a dimension. Gradients flow back.

    Args:
        tensors: On devices of one type; all sizes but that of dim are equal.
        dim: The dimension to join; negative ones count from the end.
        destination: A device, its number or "cpu"; by default the current device.
        out: Instead of a destination: the tensor to fill and return, on the CPU or a device.

    Raises:
        RuntimeError: Tensors that do not fit each other or out, or both a destination and out (torch's message).
    """
    tensors = list(tensors)
    if out is not None:
        if destination is not None:
            raise RuntimeError(
                f"'destination' must not be specified when 'out' is specified, but got destination={destination}"
            )
        shape = _joined_shape(tensors, dim)
        if list(out.shape) != shape:
            raise RuntimeError(f"Expected out tensor to have shape {shape}, but got {list(out.shape)}")
        return _fill(out, tensors, dim)
    if destination == -1:
        warnings.warn(
            "Using -1 to represent CPU tensor is deprecated. Please use a device object or string instead, "
            'e.g., "cpu".',
            FutureWarning,
            stacklevel=2,
        )
    _joined_shape(tensors, dim)
    gathered: torch.Tensor = Gather.apply(_destination(destination, tensors), dim, *tensors)  # type: ignore[no-untyped-call]
    return gathered


def _destination(destination: AnyDevice | None, tensors: Sequence[torch.Tensor]) -> torch.device:
    if destination is None:
        return current_device(device_type_of(tensors))
    if isinstance(destination, int):
        return torch.device("cpu") if destination == -1 else numbered(device_type_of(tensors), destination)
    found = torch.device(destination)
    return current_device(found.type) if found.type != "cpu" and found.index is None else found


class Gather(torch.autograd.Function):
    """Join pieces; the gradient is cut into the same pieces and goes back to where they came from."""

    @staticmethod
    def forward(ctx: Any, destination: torch.device, dim: int, *tensors: torch.Tensor) -> torch.Tensor:
        """Join the tensors and remember where each came from."""
        ctx.dim, ctx.devices = dim, [tensor.device for tensor in tensors]
        ctx.sizes = [tensor.shape[dim] for tensor in tensors]
        return joined(tensors, dim, destination)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        """Give each tensor its piece of the gradient; made of torch's own operations, so it has a gradient too."""
        return (None, None, *scatter(gradients[0], ctx.devices, ctx.sizes, ctx.dim))


def joined(tensors: Sequence[torch.Tensor], dim: int, destination: torch.device) -> torch.Tensor:
    """Join tensors on a device; channels_last when all of them are.

    Raises:
        RuntimeError: The tensors do not fit each other (torch's message).
    """
    shape = _joined_shape(tensors, dim)
    channels_last = all(_is_channels_last(tensor) for tensor in tensors)
    memory_format = torch.channels_last if channels_last else torch.contiguous_format
    result = torch.empty(shape, dtype=tensors[0].dtype, device=destination, memory_format=memory_format)
    return _fill(result, tensors, dim)


def _fill(result: torch.Tensor, tensors: Sequence[torch.Tensor], dim: int) -> torch.Tensor:
    start = 0
    for tensor in tensors:
        size = tensor.shape[dim]
        # A copy to the CPU has to be over when the caller reads the result.
        result.narrow(dim, start, size).copy_(tensor, non_blocking=result.device.type != "cpu")
        start += size
    return result


def _joined_shape(tensors: Sequence[torch.Tensor], dim: int) -> list[int]:
    if not tensors:
        raise RuntimeError("Expected at least one tensor to gather from")
    require_on_device(tensors, device_type_of(tensors), INPUT_ELSEWHERE)
    dim = wrapped_dim(tensors[0], dim)
    shape = list(tensors[0].shape)
    for index, tensor in enumerate(tensors):
        if tensor.dim() != len(shape):
            raise RuntimeError(
                "Expected all input tensors to have the same number of dimensions, but tensor at index "
                f"{index} has {tensor.dim()} dimensions, (expected {len(shape)})"
            )
        shape[dim] = tensor.shape[dim]
        if list(tensor.shape) != shape:
            raise RuntimeError(
                f"Input tensor at index {index} has invalid shape {list(tensor.shape)}, but expected {shape}"
            )
    shape[dim] = sum(tensor.shape[dim] for tensor in tensors)
    return shape


def _is_channels_last(tensor: torch.Tensor) -> bool:
    # By the order of the strides and not is_contiguous(): a piece of a channels_last image may have gaps.
    if tensor.dim() != 4 or tensor.numel() == 0 or tensor.stride(1) == 0:
        return False
    extent = 0
    for dim in (1, 3, 2):
        if tensor.stride(dim) < extent:
            return False
        extent = tensor.stride(dim) * tensor.shape[dim]
    # An image of one pixel and one channel is as much the one as the other; torch calls it contiguous.
    return tensor.stride(0) >= extent and extent != tensor.stride(1)
