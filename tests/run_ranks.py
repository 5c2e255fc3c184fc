"""Run a function on ranks that spawn() starts: for tests of spawn(), of ranks that die, of several worlds at once.

All others have the ranks plugin run them: see worlds.py.
"""

from __future__ import annotations

import pickle
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias

import cloudpickle
import pytest

import phalanx

Kind: TypeAlias = Literal["process", "thread"]

KINDS: tuple[Kind, ...] = ("process", "thread")


def run_ranks(kind: Kind, ranks: int, function: Callable[..., Any], *args: Any, timeout_s: float = 60) -> list[Any]:
    """Call the function on every rank and return the results."""
    # By value: a rank that imported the test module would import pytest with it.
    for value in (function, *args):
        module = getattr(value, "__module__", None) or ""
        if callable(value) and module.startswith("tests."):
            cloudpickle.register_pickle_by_value(sys.modules[module])
    return phalanx.spawn(function, ranks=ranks, kind=kind, args=args, timeout_s=timeout_s)


every_kind = pytest.mark.parametrize("kind", KINDS)


def read_notes(folder: Path, ranks: Sequence[int]) -> dict[int, Any]:
    """Return what ranks left with leave_note(), also when spawn() raised."""
    return {rank: pickle.loads((folder / f"{rank}.note").read_bytes()) for rank in ranks}
