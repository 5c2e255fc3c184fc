"""Tensors that must be equal but for rounding."""

from __future__ import annotations

import torch


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
    assert list(actual) == list(expected), what
    for name, tensor in actual.items():
        close(tensor, expected[name], f"{what} {name}", tolerance)
