"""Run a function on real ranks, of every kind of group there is."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import cloudpickle
import pytest

import phalanx

Kind: TypeAlias = Literal["process", "thread"]

# A later kind of group joins the whole battery by one line here.
KINDS: tuple[Kind, ...] = ("process", "thread")


@dataclass(frozen=True)
class World:
    """A kind of ranks, and how many."""

    kind: Kind
    ranks: int

    def run(self, function: Callable[..., Any], *args: Any, timeout_s: float = 60) -> list[Any]:
        return run_ranks(self.kind, self.ranks, function, *args, timeout_s=timeout_s)


def run_ranks(kind: Kind, ranks: int, function: Callable[..., Any], *args: Any, timeout_s: float = 60) -> list[Any]:
    """Call the function on every rank and return the results."""
    # By value: a rank that imported the test module would import pytest with it.
    for value in (function, *args):
        module = getattr(value, "__module__", None) or ""
        if callable(value) and module.startswith("tests."):
            cloudpickle.register_pickle_by_value(sys.modules[module])
    return phalanx.spawn(function, ranks=ranks, kind=kind, args=args, timeout_s=timeout_s)


def worlds(*sizes: int, fast: Sequence[Kind] = KINDS) -> pytest.MarkDecorator:
    """Run a test over every kind of ranks, with these sizes.

    One size of each kind in `fast` is in every check: few processes, many threads. The others are marked slow.
    """
    few = min((size for size in sizes if size > 1), default=1)
    many = max((size for size in sizes if size <= 4), default=8)
    chosen = {(kind, many if kind == "thread" else few) for kind in fast}

    def param(kind: Kind, ranks: int) -> Any:
        is_fast = (kind, ranks) in chosen and (kind == "thread" or ranks < 4)
        marks = () if is_fast else (pytest.mark.slow,)
        return pytest.param(World(kind, ranks), id=f"{kind}-{ranks}", marks=marks)

    return pytest.mark.parametrize("world", [param(kind, ranks) for kind in KINDS for ranks in sizes])


every_world = worlds(1, 2, 3, 4)
every_kind = pytest.mark.parametrize("kind", KINDS)


def read_notes(folder: Path, ranks: Sequence[int]) -> dict[int, Any]:
    """Return what ranks left with leave_note(), also when spawn() raised."""
    return {rank: pickle.loads((folder / f"{rank}.note").read_bytes()) for rank in ranks}
