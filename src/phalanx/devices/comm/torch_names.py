"""The functions torch.nn.parallel.comm looks for in torch._C, with torch's signatures.

A torch build without CUDA lacks them. Device numbers mean the type of the tensors, or of the accelerator.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from phalanx.devices.comm.broadcasting import broadcast, broadcast_coalesced
from phalanx.devices.comm.gathering import gather, joined
from phalanx.devices.comm.placement import current_device, device_type_of, numbered
from phalanx.devices.comm.scattering import scatter


def _gather(tensors: Sequence[torch.Tensor], dim: int, destination_index: int | None) -> torch.Tensor:
    if destination_index == -1:
        return joined(tensors, dim, torch.device("cpu"))
    device_type = device_type_of(tensors)
    here = current_device(device_type) if destination_index is None else numbered(device_type, destination_index)
    return joined(tensors, dim, here)


def names() -> dict[str, Callable[..., Any]]:
    """Return the functions, by their dotted paths."""
    return {
        "torch._C._broadcast": lambda tensor, devices: list(broadcast(tensor, devices)),
        "torch._C._broadcast_out": lambda tensor, out_tensors: list(broadcast(tensor, out=out_tensors)),
        "torch._C._broadcast_coalesced": lambda *arguments: list(broadcast_coalesced(*arguments)),
        "torch._C._scatter": lambda *arguments: list(scatter(*arguments)),
        "torch._C._scatter_out": lambda tensor, out_tensors, dim, streams: list(
            scatter(tensor, dim=dim, streams=streams, out=out_tensors)
        ),
        "torch._C._gather": _gather,
        "torch._C._gather_out": lambda tensors, out_tensor, dim: gather(tensors, dim, out=out_tensor),
    }
