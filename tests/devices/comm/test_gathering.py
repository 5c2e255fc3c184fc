from __future__ import annotations

import pytest
import torch

from phalanx.devices.comm import gather
from tests.virtual_gpus.both_faces import assert_equal, on_both_faces


@on_both_faces
def test_gather_joins_along_any_dimension_wherever_asked(device_type: str) -> None:
    module = torch.get_device_module(device_type)
    whole = torch.randn(6, 4, 5)
    for dim in (0, 1, -1):
        parts = whole.split([1, whole.shape[dim] - 1], dim)
        pieces = [part.to(f"{device_type}:{index}") for index, part in enumerate(parts)]
        for destination, place in (
            (None, f"{device_type}:2"),
            (1, f"{device_type}:1"),
            (torch.device(device_type, 3), f"{device_type}:3"),
            (device_type, f"{device_type}:2"),
            ("cpu", "cpu"),
        ):
            with module.device(2):
                joined = gather(pieces, dim, destination)
            assert joined.device == torch.device(place)
            assert_equal(joined, whole)
        for place in (f"{device_type}:3", "cpu"):
            out = torch.empty(6, 4, 5, device=place)
            assert gather(pieces, dim, out=out) is out
            assert_equal(out, whole)


@on_both_faces
def test_gather_still_takes_minus_one_for_the_cpu(device_type: str) -> None:
    with pytest.warns(FutureWarning, match="Using -1 to represent CPU tensor is deprecated"):
        joined = gather([torch.ones(2, device=device_type)], 0, -1)
    assert joined.device.type == "cpu"


@on_both_faces
def test_gather_refuses_in_torchs_words(device_type: str) -> None:
    on_zero, on_one = (torch.ones(2, 3, device=f"{device_type}:{index}") for index in (0, 1))
    kind = "CUDA" if device_type == "cuda" else device_type
    for tensors, words in (
        ([], "Expected at least one tensor to gather from"),
        ([on_zero, on_one.cpu()], f"Expected all input tensors to be {kind} tensors, but tensor at index 1 has device"),
        ([on_zero, on_one[0]], "Expected all input tensors to have the same number of dimensions"),
        ([on_zero, on_one[:, :2]], r"Input tensor at index 1 has invalid shape \[2, 2\], but expected \[2, 3\]"),
    ):
        for out in (None, torch.empty(4, 3)):
            with pytest.raises(RuntimeError, match=words):
                gather(tensors, out=out)
    with pytest.raises(RuntimeError, match="'destination' must not be specified when 'out' is specified"):
        gather([on_zero], 0, "cpu", out=torch.empty(2, 3))
    with pytest.raises(RuntimeError, match=r"Expected out tensor to have shape \[4, 3\], but got \[5, 3\]"):
        gather([on_zero, on_one], out=torch.empty(5, 3))
    with pytest.raises(IndexError, match="Dimension out of range"):
        gather([on_zero], 2)
