"""Run a test on four virtual devices of each face, in a process of its own.

@on_both_faces
def test_a_tensor_knows_its_device(device_type: str) -> None:
    assert torch.ones(1, device=f"{device_type}:3").device.index == 3
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Literal

import pytest
import torch

import phalanx
from tests.virtual_gpus.in_child import in_child

NUM_DEVICES = 4


def on_both_faces(test: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(test)
    def on_devices(device_type: Literal["virtual", "cuda"], **fixtures: Any) -> None:
        phalanx.virtual_devices(NUM_DEVICES, face=device_type)
        test(device_type, **fixtures)

    marked: Callable[..., None] = in_child(pytest.mark.parametrize("device_type", ["virtual", "cuda"])(on_devices))
    return marked


def devices(device_type: str, *indices: int) -> list[torch.device]:
    return [torch.device(device_type, index) for index in indices]


def assert_equal(actual: torch.Tensor, expected: torch.Tensor) -> None:
    """Compare values, types and layouts, wherever the tensors are."""
    assert (actual.dtype, actual.layout, actual.shape) == (expected.dtype, expected.layout, expected.shape)
    # Not torch.testing: every child would import it anew, for half a second.
    assert torch.equal(actual.cpu().to_dense(), expected.cpu().to_dense()), f"{actual}\nis not\n{expected}"
