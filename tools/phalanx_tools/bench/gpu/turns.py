"""How ranks take turns: they agree by host memory, so that what is measured on the GPU is never used to measure."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any, TypeVar

import torch

from phalanx.collectives import Group

_Value = TypeVar("_Value")
_MOST_ITERATIONS = 2000


class RanksDisagreeError(RuntimeError):
    """A step failed on some rank: what it said there."""


class Turns:
    """Timing by all ranks of a group together.

    Args:
        control: A group for agreeing only.
        device: Where the work is done.
    """

    def __init__(self, control: Group, device: torch.device) -> None:
        self._control = control
        self._device = device

    def agree(self, step: Callable[[], _Value]) -> list[_Value]:
        """Have every rank do a step; return all their results.

        Raises:
            RanksDisagreeError: It failed somewhere.
        """
        value: Any = None
        failure = ""
        try:
            value = step()
        except Exception as error:
            failure = f"{type(error).__name__}: {error}".splitlines()[0]
        outcomes = self._control.all_gather_object((value, failure))
        failures = [f"rank {rank}: {words}" for rank, (_, words) in enumerate(outcomes) if words]
        if failures:
            raise RanksDisagreeError(failures[0])
        return [its_value for its_value, _ in outcomes]

    def time(self, call: Callable[[], Any], iterations: int) -> float:
        """Return the seconds per call of the slowest rank, until the device has done them all.

        Raises:
            RanksDisagreeError: It failed somewhere.
        """

        def run() -> float:
            self.synchronize()
            self._control.barrier()
            start = time.perf_counter()
            for _ in range(iterations):
                call()
            self.synchronize()
            return time.perf_counter() - start

        return max(self.agree(run)) / iterations

    def iterations_for(self, call: Callable[[], Any], turn_s: float) -> int:
        """Find how many calls fill a turn; warms up on the way.

        Raises:
            RanksDisagreeError: It failed somewhere.
        """
        self.time(call, 1)
        once_s = self.time(call, 2)
        if once_s < turn_s / 10:
            once_s = self.time(call, 10)
        return max(1, min(_MOST_ITERATIONS, round(turn_s / once_s)))

    def synchronize(self) -> None:
        """Wait for the device."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)


def spread(times_s: list[float]) -> dict[str, float]:
    """Return the median and how far times lie apart."""
    ordered = sorted(times_s)
    return {"median_s": statistics.median(ordered), "least_s": ordered[0], "most_s": ordered[-1]}
