"""The operations of the matrix: how one rank makes each of them, rightly or with something changed.

Rank CULPRIT is the one that goes wrong. A message goes between it and PARTNER; the other ranks are bystanders.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from phalanx.collectives import ReduceOp
from phalanx_tools.conformance.faults.doors import Door

NUM_RANKS = 4
CULPRIT = 2
PARTNER = 1
FORMS = {"small": 16, "large": 1 << 20}


@dataclass(frozen=True)
class Arguments:
    """What a rank passes; the same on all ranks unless one is at fault."""

    count: int
    dtype: torch.dtype = torch.float32
    op: ReduceOp = ReduceOp.SUM
    root: int = 0

    def one(self, parts: int = 1) -> torch.Tensor:
        """Return a tensor for so many ranks' parts."""
        return torch.ones(parts * self.count, dtype=self.dtype)

    def all(self) -> torch.Tensor:
        """Return a tensor for all ranks' parts."""
        return self.one(NUM_RANKS)

    def each(self) -> list[torch.Tensor]:
        """Return a tensor per rank."""
        return [self.one() for _ in range(NUM_RANKS)]

    def torch_op(self) -> Any:
        """Return the reduction as torch names it."""
        from phalanx.torch_backend.untyped import dist

        return getattr(dist.ReduceOp, self.op.name)


@dataclass(frozen=True)
class Operation:
    """A row of the matrix.

    Attributes:
        door: Through which it goes.
        name: What it is called in the table.
        call: Makes the call on one rank.
        needs: What ranks must agree on: of "data", "op" and "root".
        is_message: Only the culprit and its partner take part.
        culprit_sends: Of a message: which way it goes.
    """

    door: str
    name: str
    call: Callable[[Door, Arguments], Any]
    needs: frozenset[str]
    is_message: bool = False
    culprit_sends: bool = False

    @property
    def forms(self) -> tuple[str, ...]:
        """The sizes it comes in: one is enough where there is no data."""
        return tuple(FORMS) if "data" in self.needs else ("small",)


def _collective(door: str, name: str, call: Callable[[Any, Arguments], Any], *needs: str) -> Operation:
    return Operation(door, name, lambda entered, given: call(entered.api, given), frozenset({"data", *needs}))


def _message(door: str, name: str, *, culprit_sends: bool, is_async: bool = False) -> Operation:
    def call(entered: Door, given: Arguments) -> None:
        if entered.rank not in (CULPRIT, PARTNER):
            return
        other = PARTNER if entered.rank == CULPRIT else CULPRIT
        transfer = entered.api.send if (entered.rank == CULPRIT) == culprit_sends else entered.api.recv
        if is_async:
            transfer(given.one(), other, async_op=True).wait()
        else:
            transfer(given.one(), other)

    return Operation(door, name, call, frozenset({"data"}), is_message=True, culprit_sends=culprit_sends)


def _barrier(door: str) -> Operation:
    return Operation(door, "barrier", lambda entered, given: entered.api.barrier(), frozenset())


def _gather(group: Any, given: Arguments) -> None:
    group.gather(given.each() if group.rank == given.root else None, given.one(), given.root)


def _scatter(group: Any, given: Arguments) -> None:
    group.scatter(given.one(), given.each() if group.rank == given.root else None, given.root)


OPERATIONS = (
    _collective("phalanx", "all_reduce", lambda g, a: g.all_reduce(a.one(), a.op), "op"),
    _collective("phalanx", "all_reduce async", lambda g, a: g.all_reduce(a.one(), a.op, async_op=True).wait(), "op"),
    _collective("phalanx", "all_reduce_coalesced", lambda g, a: g.all_reduce_coalesced([a.one(), a.one()], a.op), "op"),
    _collective("phalanx", "reduce", lambda g, a: g.reduce(a.one(), a.root, a.op), "op", "root"),
    _collective("phalanx", "broadcast", lambda g, a: g.broadcast(a.one(), a.root), "root"),
    _collective("phalanx", "all_gather", lambda g, a: g.all_gather(a.each(), a.one())),
    _collective("phalanx", "all_gather_single", lambda g, a: g.all_gather_single(a.all(), a.one())),
    _collective("phalanx", "gather", _gather, "root"),
    _collective("phalanx", "scatter", _scatter, "root"),
    _collective("phalanx", "reduce_scatter", lambda g, a: g.reduce_scatter(a.one(), a.each(), a.op), "op"),
    _collective("phalanx", "reduce_scatter_single", lambda g, a: g.reduce_scatter_single(a.one(), a.all(), a.op), "op"),
    _collective("phalanx", "all_to_all", lambda g, a: g.all_to_all(a.each(), a.each())),
    _collective("phalanx", "all_to_all_single", lambda g, a: g.all_to_all_single(a.one(), a.one())),
    _barrier("phalanx"),
    _message("phalanx", "send", culprit_sends=True),
    _message("phalanx", "recv", culprit_sends=False),
    _message("phalanx", "send async", culprit_sends=True, is_async=True),
    _message("phalanx", "recv async", culprit_sends=False, is_async=True),
    _collective("torch", "all_reduce", lambda d, a: d.all_reduce(a.one(), op=a.torch_op()), "op"),
    _collective("torch", "broadcast", lambda d, a: d.broadcast(a.one(), src=a.root), "root"),
    _collective("torch", "all_gather_into_tensor", lambda d, a: d.all_gather_into_tensor(a.all(), a.one())),
    _collective("torch", "reduce_scatter_tensor",
                lambda d, a: d.reduce_scatter_tensor(a.one(), a.all(), op=a.torch_op()), "op"),
    _collective("torch", "all_to_all_single", lambda d, a: d.all_to_all_single(a.one(), a.one())),
    _barrier("torch"),
    _message("torch", "send", culprit_sends=True),
    _message("torch", "recv", culprit_sends=False),
)  # fmt: skip


def find_operation(door: str, name: str) -> Operation:
    """Return the row with this name."""
    return next(operation for operation in OPERATIONS if (operation.door, operation.name) == (door, name))
