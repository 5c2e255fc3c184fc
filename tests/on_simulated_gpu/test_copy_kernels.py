from __future__ import annotations

import ctypes

import pytest
import torch

from tests.on_simulated_gpu.launches import Entry, SimulatedGpu
from tests.reference import values


@pytest.fixture(scope="module")
def module(simulated_gpu: SimulatedGpu) -> ctypes.c_void_p:
    return simulated_gpu.module("PHX_COPY")


def pattern(num_bytes: int) -> torch.Tensor:
    return values(torch.uint8, num_bytes, num_bytes)


def test_copy_is_right_for_every_alignment(gpu: SimulatedGpu, module: ctypes.c_void_p) -> None:
    for offset in range(16):
        for distance in range(16):
            source = gpu.tensor(pattern(203), offset)
            target = gpu.tensor(torch.zeros(203, dtype=torch.uint8), distance)
            gpu.run(module, "copy_1", [Entry(0, 203, [source.data_ptr()], [target.data_ptr()])], num_blocks=1)
            assert torch.equal(target, source), (offset, distance)
            assert gpu.guards_are_whole(target, distance)
            gpu.free_all()


def test_copy_fills_its_range_alone(gpu: SimulatedGpu, module: ctypes.c_void_p) -> None:
    source, target = gpu.tensor(pattern(5000)), gpu.tensor(torch.zeros(5000, dtype=torch.uint8))
    ranges = ((1, 2), (17, 17), (33, 4999))
    entries = [Entry(first, last, [source.data_ptr()], [target.data_ptr()]) for first, last in ranges]
    gpu.run(module, "copy_1", entries, is_spilled=True)
    expected = torch.zeros(5000, dtype=torch.uint8)
    for first, last in ranges:
        expected[first:last] = source[first:last]
    assert torch.equal(target, expected)


@pytest.mark.parametrize("num_targets", [1, 2, 3, 8])
def test_copy_reaches_all_targets_and_skips_missing_ones(
    gpu: SimulatedGpu, module: ctypes.c_void_p, num_targets: int
) -> None:
    for offsets in ((0,), (16, 8), (4, 2, 1)):
        source = gpu.tensor(pattern(70_001))
        places = [offsets[number % len(offsets)] for number in range(num_targets)]
        targets = [gpu.tensor(torch.zeros(70_001, dtype=torch.uint8), place) for place in places]
        written = [0, *(target.data_ptr() for target in targets), 0]
        gpu.run(module, "copy_any", [Entry(0, 70_001, [source.data_ptr()], written)])
        for target, place in zip(targets, places, strict=True):
            assert torch.equal(target, source)
            assert gpu.guards_are_whole(target, place)
        gpu.free_all()


def test_copy_without_target_does_nothing(gpu: SimulatedGpu, module: ctypes.c_void_p) -> None:
    source = gpu.tensor(pattern(100))
    for kernel in ("copy_1", "copy_any"):
        gpu.run(module, kernel, [Entry(0, 100, [source.data_ptr()], [0])])
    assert torch.equal(source, pattern(100))
