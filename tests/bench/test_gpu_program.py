"""The program that measures a GPU, tried in host memory: what it measures there means nothing, but it must be right."""

from __future__ import annotations

import math

import pytest
import torch

from phalanx_tools.bench.cases import Case
from phalanx_tools.bench.gpu.calls import Preparation
from phalanx_tools.bench.gpu.data import RandomData
from phalanx_tools.bench.gpu.goals import OPERATIONS
from phalanx_tools.bench.gpu.measure import GpuOptions, has_failed, measure_gpu, missed_goals
from tests.dev import dev

_CPU = torch.device("cpu")


def test_random_data_is_the_same_for_the_same_key_only() -> None:
    data = RandomData(7, _CPU)
    first = data.fill(torch.empty(100), 1, 2)
    assert data.is_copy(first, 1, 2)
    assert not data.is_copy(first, 2, 1)
    assert not RandomData(8, _CPU).is_copy(first, 1, 2)


def test_a_sum_may_be_rounded_but_not_wrong() -> None:
    data = RandomData(7, _CPU)
    keys = [(rank,) for rank in range(8)]
    total = torch.stack([data.fill(torch.empty(1000), *key) for key in keys]).sum(0)
    assert data.is_sum(total, keys)
    assert not data.is_sum(total, keys[1:])
    total[500] += 1e-4
    assert not data.is_sum(total, keys)


def test_sums_in_place_are_checked_after_several_calls() -> None:
    data = RandomData(7, _CPU)
    keys = [(rank,) for rank in range(3)]
    total = torch.stack([data.fill(torch.empty(1000), *key) for key in keys]).sum(0)
    for num_calls in (1, 2, 3, 4):
        assert data.is_sum(total, keys, num_calls)
        assert not data.is_sum(total, keys, num_calls + 1)
        total = total + total + total


def test_poison_that_was_left_over_is_wrong() -> None:
    data = RandomData(7, _CPU)
    result = data.fill(torch.empty(1000), 3)
    result[999] = math.nan
    assert not data.is_copy(result, 3)
    assert not data.is_sum(result, [(3,)])


class _Broken:
    """A group of one rank whose calls are right until they have been many: what only the timed ones would show."""

    def __init__(self, num_right: int) -> None:
        self._num_left = num_right

    def broadcast(self, tensor: torch.Tensor, root: int) -> None:
        self._spoil(tensor)

    def all_reduce(self, tensor: torch.Tensor) -> None:
        self._spoil(tensor)

    def _spoil(self, tensor: torch.Tensor) -> None:
        self._num_left -= 1
        if self._num_left < 0:
            tensor[-1] += 1


@pytest.mark.parametrize("operation", ["broadcast", "all_reduce"])
def test_what_goes_wrong_in_a_turn_is_seen_after_it(operation: str) -> None:
    calls = {operation: getattr(_Broken(10), operation)}
    prepared = Preparation(0, _CPU).prepare(Case(operation, 1, 4096), calls, 7)
    assert prepared.check()
    for is_right in (True, False):
        prepared.refill()
        for _ in range(5):  # a turn
            prepared.call()
        assert prepared.check_turn() == is_right


@pytest.mark.slow
def test_every_collective_of_every_contender_is_right_and_timed() -> None:
    told: list[str] = []
    options = GpuOptions(ranks=(2,), sizes=(4096,), rounds=1, sequences=4, device="cpu")
    result = measure_gpu(options, told.append)
    assert has_failed(result) == [], result
    assert len(result["rows"]) == 3 * len(OPERATIONS)
    assert all(row["median_us"] > 0 and row["correct"] for row in result["rows"])
    ways = [(row["backend"], row["gradient_as_bucket_view"]) for row in result["training"]]
    assert ways == [("alone", False), ("phalanx", True), ("phalanx", False), ("gloo", True), ("gloo", False)]
    assert result["unmeasured"] == []
    assert told[0].startswith("plain copy of 32 MiB: ")


@pytest.mark.slow
def test_what_there_was_no_time_for_is_told_and_fails() -> None:
    options = GpuOptions(ranks=(2, 4), sizes=(4, 64 << 20), rounds=1, device="cpu", time_limit_s=0.001)
    result = measure_gpu(options, lambda _: None)
    assert result["rows"] == []
    assert result["notes"][0] == "all_reduce, 2 ranks, 4 B, left out: the time was up"
    assert has_failed(result) == ["nothing was measured"]
    small = [f"{name}, {ranks} ranks, 4 B: not measured" for ranks in (2, 4) for name in OPERATIONS[:5]]
    judged = "training over phalanx, 4 ranks, gradient_as_bucket_view=True: not measured"
    assert missed_goals(result) == [*small, judged]


@pytest.mark.slow
def test_without_a_gpu_the_command_says_so_and_ends_with_2() -> None:
    ended = dev("bench", "gpu", CUDA_VISIBLE_DEVICES="")
    assert ended.returncode == 2, ended.stderr
    assert "./dev bench gpu: this measures ranks that share a GPU, and torch sees none here" in ended.stderr
