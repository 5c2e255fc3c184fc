"""Gradients through the coalesced forms: a broadcast's gradient is a sum, a sum's gradient is a broadcast."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

import torch

from phalanx.devices.comm.broadcasting import broadcast_coalesced
from phalanx.devices.comm.reducing import reduce_add_coalesced

Gradients = tuple[torch.Tensor | None, ...]


def broadcast_with_gradients(
    tensors: Sequence[torch.Tensor], devices: Sequence[torch.device]
) -> list[tuple[torch.Tensor, ...]]:
    """Return, for each device, copies of all tensors; the gradients of the copies are summed on the first device."""
    return _in_groups(_broadcast(tuple(devices), *tensors), len(tensors))


def sums_with_gradients(
    inputs: Sequence[Sequence[torch.Tensor]], destination: torch.device
) -> tuple[torch.Tensor, ...]:
    """Return the sums over devices; the gradient of a sum goes to all its terms."""
    return _reduce_add(destination, len(inputs[0]), *chain.from_iterable(inputs))


class Broadcast(torch.autograd.Function):
    """Copies on all devices forward, the sum of their gradients backward."""

    @staticmethod
    def forward(ctx: Any, devices: tuple[torch.device, ...], *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return the copies of the first device, then those of the second, and so on."""
        ctx.source, ctx.num_tensors = devices[0], len(tensors)
        outputs = broadcast_coalesced(tensors, devices)
        wanted = ctx.needs_input_grad[1:]
        still = [tensor for copies in outputs for tensor, wants in zip(copies, wanted, strict=True) if not wants]
        ctx.mark_non_differentiable(*still)
        return tuple(chain.from_iterable(outputs))

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Gradients:
        """Sum the gradients on the device of the source."""
        return (None, *_reduce_add(ctx.source, ctx.num_tensors, *gradients))


class ReduceAdd(torch.autograd.Function):
    """Sums on one device forward, copies of their gradients backward."""

    @staticmethod
    def forward(
        ctx: Any, destination: torch.device, num_tensors: int, *tensors: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        """Return the sums of every num_tensors-th tensor."""
        groups = _in_groups(tensors, num_tensors)
        ctx.devices = [group[0].device for group in groups]
        return reduce_add_coalesced(groups, destination)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Gradients:
        """Give every term the gradient of its sum."""
        source = gradients[0].device
        copies = _in_groups(_broadcast((source, *ctx.devices), *gradients), len(gradients))
        return (None, None, *chain.from_iterable(copies[1:]))


def _in_groups(tensors: Sequence[torch.Tensor], size: int) -> list[tuple[torch.Tensor, ...]]:
    return [tuple(tensors[start : start + size]) for start in range(0, len(tensors), size)]


# torch's apply() has no types.
_broadcast: Callable[..., tuple[torch.Tensor, ...]] = Broadcast.apply
_reduce_add: Callable[..., tuple[torch.Tensor, ...]] = ReduceAdd.apply
