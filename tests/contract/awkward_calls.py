"""Every operation with one awkward tensor in it, through a group's own methods and through torch.distributed.

No pytest here: ranks import it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from phalanx.collectives import Group

Pairs = list[tuple[Tensor, Tensor]]  # what came, and what should have


def as_bytes(tensor: Tensor) -> Tensor:
    """Return the memory of a tensor in one piece: some types can do nothing else in torch."""
    return tensor.contiguous().view(torch.uint8)


def clone(tensor: Tensor) -> Tensor:
    return as_bytes(tensor).clone().view(tensor.dtype)


def blank_like(tensor: Tensor) -> Tensor:
    return torch.zeros_like(as_bytes(tensor)).view(tensor.dtype)


def joined(tensors: Sequence[Tensor]) -> Tensor:
    return torch.cat([as_bytes(tensor) for tensor in tensors]).view(tensors[0].dtype)


class GroupDoor:
    """A group's own methods. Both doors have the same names, and torch's order of arguments."""

    device = torch.device("cpu")

    def __init__(self, group: Group) -> None:
        self.rank, self.size = group.rank, group.size
        self._group = group
        self.sum, self.reduced = group.all_reduce, add

    def __getattr__(self, name: str) -> Any:
        return getattr(self._group, name)

    def send(self, tensor: Tensor, peer: int) -> None:
        # Both ranks send first; what is eager is over at once, what is not goes on behind the receive.
        self._sent = self._group.send(tensor, peer, async_op=True)


class TorchDoor:
    """The functions of torch.distributed, for tensors of one device."""

    def __init__(self, device: str | torch.device = "cpu") -> None:
        self.device = torch.device(device)
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.sum, self.reduced = dist.all_reduce, add
        self.all_reduce, self.reduce, self.broadcast = dist.all_reduce, dist.reduce, dist.broadcast
        self.all_gather, self.all_gather_single = dist.all_gather, dist.all_gather_into_tensor
        self.reduce_scatter, self.reduce_scatter_single = dist.reduce_scatter, dist.reduce_scatter_tensor
        self.all_to_all, self.all_to_all_single = dist.all_to_all, dist.all_to_all_single
        self.all_reduce_coalesced, self.recv = dist.all_reduce_coalesced, dist.recv
        self.scatter, self.barrier = dist.scatter, dist.barrier

    def gather(self, outputs: list[Tensor] | None, tensor: Tensor) -> None:
        dist.gather(tensor, outputs)

    def send(self, tensor: Tensor, peer: int) -> None:
        self._sent = dist.isend(tensor, peer)


class AveragingDoor(TorchDoor):
    """The same for whole numbers, which are averaged as NCCL does it: without what is behind the point."""

    def __init__(self, device: str | torch.device) -> None:
        super().__init__(device)
        self.reduced = lambda values: torch.div(add(values), self.size, rounding_mode="trunc")
        for name in ("all_reduce", "reduce", "reduce_scatter", "reduce_scatter_single", "all_reduce_coalesced"):
            setattr(self, name, functools.partial(getattr(self, name), op=dist.ReduceOp.AVG))


@dataclass(frozen=True)
class Case:
    """What a call works with.

    Attributes:
        door: The way in.
        values: What each rank's tensor holds.
        total: What they are reduced to.
        is_refused: The awkward tensor is refused.
        is_everywhere: That may be by torch itself, which tells no peer: so every rank gives one.
    """

    door: Any
    values: Sequence[Tensor]
    total: Tensor
    is_refused: bool
    is_everywhere: bool

    @property
    def own(self) -> Tensor:
        return clone(self.values[self.door.rank])

    @property
    def peer(self) -> int:
        return (int(self.door.rank) + 1) % int(self.door.size)

    def blanks(self) -> list[Tensor]:
        return [blank_like(value) for value in self.values]


@dataclass(frozen=True)
class Operation:
    """An operation in which one tensor is awkward.

    Attributes:
        name: In words.
        is_filled: The awkward tensor is written to.
        is_reduced: Its elements are added up.
        blocks: How many ranks' values the awkward tensor holds.
        run: Call it, and return what came and what should have; the awkward tensor itself stands for its values.
    """

    name: str
    is_filled: bool
    is_reduced: bool
    blocks: int
    run: Callable[[Case, Tensor], Pairs]


def _all_reduce(case: Case, t: Tensor) -> Pairs:
    case.door.all_reduce(t)
    return [(t, case.total)]


def _all_reduce_coalesced(case: Case, t: Tensor) -> Pairs:
    beside = case.own
    case.door.all_reduce_coalesced([beside, t])
    return [(t, case.total), (beside, case.total)]


def _reduce(case: Case, t: Tensor) -> Pairs:
    case.door.reduce(t, 0)
    return [(t, case.total)] if case.door.rank == 0 else []


def _broadcast_given(case: Case, t: Tensor) -> Pairs:
    target = t if case.door.rank == 0 or case.is_everywhere else case.own
    case.door.broadcast(target, 0)
    return [(target, case.values[0])] if case.door.rank else []


def _broadcast_filled(case: Case, t: Tensor) -> Pairs:
    case.door.broadcast(t, 0)
    return [(t, case.values[0])] if case.door.rank else []


def _all_gather_given(case: Case, t: Tensor) -> Pairs:
    outputs = case.blanks()
    case.door.all_gather(outputs, t)
    return list(zip(outputs, case.values, strict=True))


def _all_gather_filled(case: Case, t: Tensor) -> Pairs:
    outputs = case.blanks()
    outputs[case.peer] = t
    case.door.all_gather(outputs, case.own)
    return list(zip(outputs, case.values, strict=True))


def _all_gather_single_given(case: Case, t: Tensor) -> Pairs:
    output = joined(case.blanks())
    case.door.all_gather_single(output, t)
    return [(output, joined(case.values))]


def _all_gather_single_filled(case: Case, t: Tensor) -> Pairs:
    case.door.all_gather_single(t, case.own)
    return [(t, joined(case.values))]


def _gather_given(case: Case, t: Tensor) -> Pairs:
    outputs = [t, t] if case.is_refused else case.blanks()
    case.door.gather(outputs if case.door.rank == 0 else None, t)
    return list(zip(outputs, case.values, strict=True)) if case.door.rank == 0 else []


def _gather_filled(case: Case, t: Tensor) -> Pairs:
    outputs = [t if case.is_refused else case.blanks()[0], t]
    given = t if case.is_refused or (case.is_everywhere and case.door.rank != 0) else case.own
    case.door.gather(outputs if case.door.rank == 0 else None, given)
    return list(zip(outputs, case.values, strict=True)) if case.door.rank == 0 else []


def _scatter_given(case: Case, t: Tensor) -> Pairs:
    output = t if case.is_refused or (case.is_everywhere and case.door.rank != 0) else case.blanks()[0]
    inputs = [t, t if case.is_refused else clone(case.values[1])]
    case.door.scatter(output, inputs if case.door.rank == 0 else None)
    return [(output, case.values[case.door.rank])]


def _scatter_filled(case: Case, t: Tensor) -> Pairs:
    inputs = [t, t] if case.is_refused else [clone(value) for value in case.values]
    case.door.scatter(t, inputs if case.door.rank == 0 else None)
    return [(t, case.values[case.door.rank])]


def _reduce_scatter_given(case: Case, t: Tensor) -> Pairs:
    output = case.blanks()[0]
    case.door.reduce_scatter(output, [t, case.own])
    return [(output, case.total)]


def _reduce_scatter_filled(case: Case, t: Tensor) -> Pairs:
    case.door.reduce_scatter(t, [case.own, case.own])
    return [(t, case.total)]


def _reduce_scatter_single_given(case: Case, t: Tensor) -> Pairs:
    """The awkward one holds all ranks' values, and they are added up twice."""
    output = case.blanks()[0]
    case.door.reduce_scatter_single(output, t)
    own = case.values[case.door.rank]
    return [(output, case.door.reduced([own] * case.door.size))]


def _reduce_scatter_single_filled(case: Case, t: Tensor) -> Pairs:
    case.door.reduce_scatter_single(t, joined([case.own, case.own]))
    return [(t, case.total)]


def _all_to_all_given(case: Case, t: Tensor) -> Pairs:
    outputs = case.blanks()
    case.door.all_to_all(outputs, [t, case.own])
    return list(zip(outputs, case.values, strict=True))


def _all_to_all_filled(case: Case, t: Tensor) -> Pairs:
    outputs = case.blanks()
    outputs[0] = t
    case.door.all_to_all(outputs, [case.own, case.own])
    return list(zip(outputs, case.values, strict=True))


def _all_to_all_single_given(case: Case, t: Tensor) -> Pairs:
    output = joined(case.blanks())
    case.door.all_to_all_single(output, t)
    return [(output, joined([case.values[case.door.rank]] * case.door.size))]


def _all_to_all_single_filled(case: Case, t: Tensor) -> Pairs:
    case.door.all_to_all_single(t, joined([case.own, case.own]))
    return [(t, joined(case.values))]


def _send(case: Case, t: Tensor) -> Pairs:
    output = case.blanks()[0]
    case.door.send(t, case.peer)
    case.door.recv(output, case.peer)
    return [(output, case.values[case.peer])]


def _recv(case: Case, t: Tensor) -> Pairs:
    case.door.send(case.own, case.peer)
    try:
        case.door.recv(t, case.peer)
    except Exception:
        case.door.recv(case.blanks()[0], case.peer)  # the message is there
        raise
    return [(t, case.values[case.peer])]


def add(values: Sequence[Tensor]) -> Tensor:
    """Add small values up in the way of the engine: rounded once."""
    dtype = values[0].dtype
    if dtype is torch.bool:
        return torch.stack(list(values)).any(0)
    wide = torch.complex128 if dtype.is_complex else torch.float64 if dtype.is_floating_point else torch.int64
    total = torch.zeros(values[0].shape, dtype=wide, device=values[0].device)
    for value in values:
        total = total + value.to(wide)
    return total.to(dtype)


OPERATIONS = [
    Operation("all_reduce", True, True, 1, _all_reduce),
    Operation("all_reduce_coalesced", True, True, 1, _all_reduce_coalesced),
    Operation("reduce", True, True, 1, _reduce),
    Operation("broadcast from", False, False, 1, _broadcast_given),
    Operation("broadcast into", True, False, 1, _broadcast_filled),
    Operation("all_gather from", False, False, 1, _all_gather_given),
    Operation("all_gather into", True, False, 1, _all_gather_filled),
    Operation("all_gather_single from", False, False, 1, _all_gather_single_given),
    Operation("all_gather_single into", True, False, 2, _all_gather_single_filled),
    Operation("gather from", False, False, 1, _gather_given),
    Operation("gather into", True, False, 1, _gather_filled),
    Operation("scatter from", False, False, 1, _scatter_given),
    Operation("scatter into", True, False, 1, _scatter_filled),
    Operation("reduce_scatter from", False, True, 1, _reduce_scatter_given),
    Operation("reduce_scatter into", True, True, 1, _reduce_scatter_filled),
    Operation("reduce_scatter_single from", False, True, 2, _reduce_scatter_single_given),
    Operation("reduce_scatter_single into", True, True, 1, _reduce_scatter_single_filled),
    Operation("all_to_all from", False, False, 1, _all_to_all_given),
    Operation("all_to_all into", True, False, 1, _all_to_all_filled),
    Operation("all_to_all_single from", False, False, 2, _all_to_all_single_given),
    Operation("all_to_all_single into", True, False, 2, _all_to_all_single_filled),
    Operation("send", False, False, 1, _send),
    Operation("recv", True, False, 1, _recv),
]
