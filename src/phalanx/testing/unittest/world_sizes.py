"""Tests that ask for a number of ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from phalanx.testing.unittest.skip_codes import TEST_SKIPS, TestSkip
from phalanx.testing.unittest.skips import Decorator, ask_first
from phalanx.testing.unittest.torch_case import TEST_WITH_ROCM

DEFAULT_WORLD_SIZE = min(4, max(2, torch.cuda.device_count())) if TEST_WITH_ROCM else 4


def requires_world_size(n: int) -> Decorator:
    """Ask for n ranks. A test on GPUs is skipped unless there are n GPUs; a test on CPUs is not.

    The `device_type` or the backend of a case decides which it is. A case with neither counts as a test on GPUs if
    there are any.
    """

    def question(case: Any) -> TestSkip | None:
        available = torch.cuda.device_count()
        if available >= n or not _needs_gpus(case, default=available > 0):
            return None
        return TestSkip(TEST_SKIPS["generic"].exit_code, f"requires {n} GPUs, found {available}")

    def decorate(func: Callable[..., Any]) -> Callable[..., Any]:
        asking = ask_first(func, question)
        asking._required_world_size = n  # type: ignore[attr-defined]
        return asking

    return decorate


def _needs_gpus(case: Any, *, default: bool) -> bool:
    for name in ("device_type", "backend_str", "backend"):
        value = getattr(case, name, None)
        try:
            value = value() if callable(value) else value
        except TypeError:  # it needs more arguments, such as a device
            continue
        if isinstance(value, str):
            return value.partition(":")[0] not in ("cpu", "gloo", "mpi", "phalanx", "threaded", "fake")
    return default


def get_required_world_size(obj: Any, default: int) -> int:
    """Return how many ranks the running test of a case asks for, else the default."""
    name: Any = getattr(obj, "_current_test_name", None) or getattr(obj, "_testMethodName", "")
    test = getattr(obj, name() if callable(name) else name, None)
    return int(getattr(test, "_required_world_size", default))
