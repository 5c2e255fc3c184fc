"""A tensor cut into pieces along a dimension, one for each device."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext

import torch

from phalanx.devices.comm.placement import (
    OUTPUT_ELSEWHERE,
    AnyDevice,
    device_type_of,
    devices_named,
    require_on_device,
    wrapped_dim,
)

Streams = Sequence[torch.Stream | None]


def scatter(
    tensor: torch.Tensor,
    devices: Iterable[AnyDevice] | None = None,
    chunk_sizes: Sequence[int] | None = None,
    dim: int = 0,
    streams: Streams | None = None,
    *,
    out: Sequence[torch.Tensor] | None = None,
) -> tuple[torch.Tensor, ...]:
    """Return a piece of the tensor on each device; what stays on its device is a view. Gradients flow back.

    Args:
        tensor: On the CPU or a device.
        devices: Devices or their numbers.
        chunk_sizes: Sizes of the pieces; by default they are equal, the last may be smaller or missing.
        dim: The dimension to cut; negative ones count from the end.
        streams: A stream of each device, or None, that the copy to it runs on.
        out: Instead of devices and sizes: tensors to fill and return.

    Raises:
        RuntimeError: Sizes, devices, streams or out that do not fit each other (torch's message).
    """
    if out is None:
        return _scattered(tensor, devices_named(devices or (), [tensor]), chunk_sizes, dim, streams)
    for name, value in (("devices", devices), ("chunk_sizes", chunk_sizes)):
        if value is not None:
            raise RuntimeError(f"'{name}' must not be specified when 'out' is specified, but got {name}={value}")
    _scatter_into(tensor, out, dim, streams)
    return tuple(out)


def _scattered(
    tensor: torch.Tensor,
    devices: Sequence[torch.device],
    chunk_sizes: Sequence[int] | None,
    dim: int,
    streams: Streams | None,
) -> tuple[torch.Tensor, ...]:
    if not devices:
        raise RuntimeError("Expected at least one device to scatter to")
    if chunk_sizes is None:
        chunks = tensor.chunk(len(devices), dim)
    elif len(chunk_sizes) == len(devices):
        chunks = tensor.split(list(chunk_sizes), dim)
    else:
        raise RuntimeError(
            "Expected devices and chunk_sizes to be of same length, but got "
            f"len(devices) = {len(devices)} and len(chunk_sizes) = {len(chunk_sizes)}"
        )
    # Fewer chunks than devices is right: torch leaves the last devices without one when there are too few rows.
    placed = zip(chunks, devices, strict=False)
    return tuple(_moved(chunk, device, streams, index) for index, (chunk, device) in enumerate(placed))


def _moved(chunk: torch.Tensor, device: torch.device, streams: Streams | None, index: int) -> torch.Tensor:
    if chunk.device == device:
        return chunk
    with _running_on(streams, index, device):
        return chunk.to(device, non_blocking=True)


def _scatter_into(tensor: torch.Tensor, out: Sequence[torch.Tensor], dim: int, streams: Streams | None) -> None:
    if not out:
        raise RuntimeError("Expected at least one output tensor to scatter to")
    require_on_device(out, device_type_of([tensor, *out]), OUTPUT_ELSEWHERE)
    dim = wrapped_dim(tensor, dim)
    _require_pieces_of(tensor, out, dim)
    chunks = tensor.split([target.shape[dim] for target in out], dim)
    for index, (target, chunk) in enumerate(zip(out, chunks, strict=True)):
        with _running_on(streams, index, target.device):
            target.copy_(chunk, non_blocking=True)


def _require_pieces_of(tensor: torch.Tensor, out: Sequence[torch.Tensor], dim: int) -> None:
    for index, target in enumerate(out):
        if _without(target.shape, dim) != _without(tensor.shape, dim) or target.dim() != tensor.dim():
            raise RuntimeError(
                f"Output tensor at index {index} has incorrect shape: {list(target.shape)}. Expected same shape except "
                f"for scatter dim {dim} as the source tensor: {list(tensor.shape)}"
            )
    total, expected = sum(target.shape[dim] for target in out), tensor.shape[dim]
    if total != expected:
        raise RuntimeError(
            f"Total size for output tensors along scatter dim {dim} does not match the source tensor size "
            f"at dim {dim}. Expected {expected}, but got total size {total}"
        )


def _without(shape: torch.Size, dim: int) -> list[int]:
    return [*shape[:dim], *shape[dim + 1 :]]


def _running_on(streams: Streams | None, index: int, device: torch.device) -> AbstractContextManager[object]:
    stream = streams[index] if streams is not None and index < len(streams) else None
    if stream is None:
        return nullcontext()
    if stream.device.index != device.index:
        raise RuntimeError(
            f"Expected the device associated with the stream at index {index} (was {stream.device.index}) "
            f"to match the device supplied at that index (expected {device.index})"
        )
    current: AbstractContextManager[object] = torch.get_device_module(device.type).stream(stream)
    return current
