"""torch.cuda.nccl: collectives between the devices of one process, one tensor on each.

torch.distributed does not use it; DataParallel and torch.cuda.comm sum gradients with it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from phalanx.patches import Names
from phalanx.virtual_gpus.torch_cuda.refusals import refusal

Tensors = Sequence[torch.Tensor]

VERSION = (2, 29, 3)  # the version in torch 2.13 for GPUs
_COMBINE: tuple[Callable[[torch.Tensor, torch.Tensor], torch.Tensor], ...] = (
    torch.add,
    torch.mul,
    torch.maximum,
    torch.minimum,
)

_no_communicators = refusal(
    "torch.cuda.nccl.unique_id() and init_rank()",
    "there is no NCCL that could join processes",
    'use torch.distributed.init_process_group("nccl")',
)


def names() -> Names:
    """Return the functions behind torch.cuda.nccl."""
    major, minor, patch = VERSION
    return {
        "torch._C._nccl_version": lambda: major << 32 | minor << 16 | patch,
        "torch._C._nccl_version_suffix": lambda: b"",
        "torch._C._nccl_unique_id": _no_communicators,
        "torch._C._nccl_init_rank": _no_communicators,
        "torch._C._nccl_all_reduce": _all_reduce,
        "torch._C._nccl_reduce": _reduce,
        "torch._C._nccl_broadcast": _broadcast,
        "torch._C._nccl_all_gather": _all_gather,
        "torch._C._nccl_reduce_scatter": _reduce_scatter,
    }


def _combined(inputs: Tensors, op: int, device: torch.device) -> torch.Tensor:
    if not 0 <= op < len(_COMBINE):
        raise RuntimeError(f"NCCL Error: invalid argument: there is no reduction {op}")
    result = inputs[0].to(device, copy=True)
    for tensor in inputs[1:]:
        result = _COMBINE[op](result, tensor.to(device))
    return result


def _all_reduce(inputs: Tensors, outputs: Tensors, op: int, _streams: Any = None, _comms: Any = None) -> None:
    result = _combined(inputs, op, inputs[0].device)
    for output in outputs:
        output.copy_(result)


def _reduce(
    inputs: Tensors, output: torch.Tensor, root: int, op: int, _streams: Any = None, _comms: Any = None
) -> None:
    output.copy_(_combined(inputs, op, inputs[root].device))


def _broadcast(inputs: Tensors, root: int, _streams: Any = None, _comms: Any = None) -> None:
    for tensor in inputs:
        if tensor is not inputs[root]:
            tensor.copy_(inputs[root])


def _all_gather(inputs: Tensors, outputs: Tensors, _streams: Any = None, _comms: Any = None) -> None:
    for output in outputs:
        for piece, tensor in zip(output.view(-1).chunk(len(inputs)), inputs, strict=True):
            piece.copy_(tensor.reshape(-1))


def _reduce_scatter(inputs: Tensors, outputs: Tensors, op: int, _streams: Any = None, _comms: Any = None) -> None:
    result = _combined(inputs, op, inputs[0].device)
    for output, piece in zip(outputs, result.view(-1).chunk(len(outputs)), strict=True):
        output.copy_(piece.view_as(output))
