"""Upstream's own marks: which tests it has switched off, and how to run them all the same."""

from __future__ import annotations

import re
from collections.abc import Callable
from types import FunctionType
from typing import Any

# Others, such as "Only Nccl supports CUDA gather", depend on the mode. These hold everywhere.
_SWITCHED_OFF = re.compile(r"github\.com/pytorch/pytorch/(issues|pull)/|due to flakiness")
_SKIPPING = "skip_wrapper"  # what unittest.skip puts in a test's place


def reason_to_skip(function: Any) -> str | None:
    """Return why upstream skips a test here, or None."""
    if getattr(function, "__unittest_skip__", False):
        return str(getattr(function, "__unittest_skip_why__", "switched off upstream"))
    return None


def is_switched_off(function: Any) -> bool:
    """Return whether upstream skips a test wherever it runs."""
    return bool(_SWITCHED_OFF.search(reason_to_skip(function) or ""))


def without_marks(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the test without its marks: the wrappers that skip are taken out, wherever in the chain they are."""
    while isinstance(function, FunctionType) and function.__code__.co_name == _SKIPPING:
        function = function.__wrapped__  # type: ignore[attr-defined]
    function.__dict__.pop("__unittest_skip__", None)
    inner = getattr(function, "__wrapped__", None)
    for cell in getattr(function, "__closure__", None) or ():
        if cell.cell_contents is inner and inner is not None:
            cell.cell_contents = without_marks(inner)
    return function
