"""Run a program on ranks whose default process group is torch's, over a backend of choice."""

from __future__ import annotations

import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, TypeAlias

import cloudpickle
import torch
import torch.distributed as dist

import phalanx
from phalanx.launch.context import current_context

Backend: TypeAlias = Literal["phalanx", "gloo"]

# What torch warns of by itself, whatever the backend: beginnings of the messages.
_TORCHS_OWN_WARNINGS = (
    r"`torch.jit.*` is deprecated",  # importing ZeroRedundancyOptimizer
    r"`torch.distributed.*` is deprecated",  # 2.13 has other names for what 2.11 has
    r"Dynamo does not know how to trace the builtin",  # the options objects of torch.distributed
)


def train(
    ranks: int, program: Callable[..., Any], *args: Any, backend: Backend = "phalanx", timeout_s: float = 90
) -> list[Any]:
    """Call `program(rank, *args)` on every rank and return the results.

    The ranks have made a default process group, and have no other.
    """
    # By value: a rank that imported the test module would import pytest with it.
    cloudpickle.register_pickle_by_value(sys.modules[program.__module__])
    with tempfile.TemporaryDirectory() as folder:
        rendezvous = f"file://{Path(folder) / 'rendezvous'}"
        return phalanx.spawn(_run_rank, ranks=ranks, args=(program, args, backend, rendezvous), timeout_s=timeout_s)


def _run_rank(program: Callable[..., Any], args: tuple[Any, ...], backend: Backend, rendezvous: str) -> Any:
    warnings.simplefilter("error")
    for message in _TORCHS_OWN_WARNINGS:
        warnings.filterwarnings("ignore", message)
    context = current_context()
    assert context is not None
    dist.init_process_group(backend, init_method=rendezvous, rank=context.rank, world_size=context.size)
    assert dist.get_backend() == backend
    try:
        return program(context.rank, *args)
    finally:
        dist.destroy_process_group()


def close(actual: torch.Tensor, expected: torch.Tensor, what: object = "", tolerance: float | None = None) -> None:
    """Check that two tensors are equal but for rounding."""
    torch.testing.assert_close(
        actual.detach(), expected.detach(), rtol=tolerance, atol=tolerance, msg=lambda text: f"{what}: {text}"
    )


def all_close(
    actual: dict[str, torch.Tensor],
    expected: dict[str, torch.Tensor],
    what: object = "",
    tolerance: float | None = None,
) -> None:
    """Check that for tensors by name."""
    assert list(actual) == list(expected), (what, list(actual), list(expected))
    for name, tensor in actual.items():
        close(tensor, expected[name], f"{what} {name}", tolerance)
