"""The functions torch.nn.parallel.comm looks for in torch._C, with torch's signatures.

A torch build without CUDA lacks them. Device numbers mean the type of the tensors, or of the accelerator.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from phalanx.devices.comm.broadcasting import coalesced_copies, copies, copy_into
from phalanx.devices.comm.gathering import joined, joined_into
from phalanx.devices.comm.placement import current_device, device_type_of, devices_named, numbered
from phalanx.devices.comm.scattering import Streams, pieces, pieces_into


def _broadcast(tensor: torch.Tensor, devices: Sequence[int]) -> list[torch.Tensor]:
    return copies(tensor, devices_named(devices, [tensor]))


def _broadcast_out(tensor: torch.Tensor, out_tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    return list(copy_into(tensor, out_tensors))


def _broadcast_coalesced(
    tensors: Sequence[torch.Tensor], devices: Sequence[int], buffer_size: int
) -> list[list[torch.Tensor]]:
    return coalesced_copies(tensors, devices_named(devices, tensors), buffer_size)


def _scatter(
    tensor: torch.Tensor,
    devices: Sequence[int],
    chunk_sizes: Sequence[int] | None,
    dim: int,
    streams: Streams | None,
) -> list[torch.Tensor]:
    return pieces(tensor, devices_named(devices, [tensor]), chunk_sizes, dim, streams)


def _scatter_out(
    tensor: torch.Tensor, out_tensors: Sequence[torch.Tensor], dim: int, streams: Streams | None
) -> list[torch.Tensor]:
    return list(pieces_into(tensor, out_tensors, dim, streams))


def _gather(tensors: Sequence[torch.Tensor], dim: int, destination_index: int | None) -> torch.Tensor:
    if destination_index == -1:
        return joined(tensors, dim, torch.device("cpu"))
    device_type = device_type_of(tensors)
    here = current_device(device_type) if destination_index is None else numbered(device_type, destination_index)
    return joined(tensors, dim, here)


def _gather_out(tensors: Sequence[torch.Tensor], out_tensor: torch.Tensor, dim: int) -> torch.Tensor:
    return joined_into(tensors, out_tensor, dim)


TORCH_NAMES: dict[str, Callable[..., Any]] = {
    function.__name__: function
    for function in (
        _broadcast,
        _broadcast_out,
        _broadcast_coalesced,
        _scatter,
        _scatter_out,
        _gather,
        _gather_out,
    )
}
