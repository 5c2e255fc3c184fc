"""Where the tests of tests/contract have their tensors, and on how many ranks: in host memory, unless told otherwise.

    pytest tests/contract                                                   the host's memory
    pytest tests/contract --battery-device cuda                             one GPU that all ranks share
    pytest tests/contract --battery-device virtual --battery-ranks 2,3      the same on a virtual GPU

On a device the tests are the same: torch makes their tensors there because it is the default device. Processes stay
between tests (kind "pool"), since each needs a second for a GPU's context.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from phalanx.testing.session_plans import plan_of
from tests.run_ranks import KINDS

DEVICES = ("cpu", "cuda", "virtual")
_ON_DEVICE_S = 200  # a test may be the first to use many kernels, which are compiled then
_MOST_THREADS = 4


@dataclass(frozen=True)
class Battery:
    """What was chosen on the command line.

    Attributes:
        device: Where tensors are: "cpu", "cuda" or "virtual".
        num_ranks: Numbers of ranks on a device.
    """

    device: str = "cpu"
    num_ranks: tuple[int, ...] = (2, 4, 8)

    @property
    def is_on_host(self) -> bool:
        return self.device == "cpu"

    def mark(self, sizes: tuple[int, ...]) -> pytest.MarkDecorator:
        """Return the marker of a test that is written for these numbers of ranks."""
        if self.is_on_host:
            return pytest.mark.ranks(sizes, kind=KINDS)
        gpus = {"gpus": "virtual:1"} if self.device == "virtual" else {"device": "cuda"}
        options = {"kind": ("pool", "thread"), "backend": "phalanx", "timeout": _ON_DEVICE_S, **gpus}
        return pytest.mark.ranks(self._sizes_on_device(sizes), **options)

    def _sizes_on_device(self, sizes: tuple[int, ...]) -> tuple[int, ...]:
        if {1, 2, 3, 4} <= set(sizes):  # for every number
            return self.num_ranks
        return tuple(size for size in sizes if size in self.num_ranks) or sizes


_chosen = [Battery()]  # one; set once, before any test is imported


def chosen() -> Battery:
    return _chosen[0]


def choose(device: str, ranks: str) -> None:
    """Set what the tests that are imported from now on run on.

    Raises:
        pytest.UsageError: It is not possible here.
    """
    try:
        num_ranks = tuple(int(word) for word in ranks.split(","))
    except ValueError:
        raise pytest.UsageError(f"--battery-ranks: {ranks!r} is not a list of numbers; write 2,4,8") from None
    if device == "cuda" and not _has_gpu():
        raise pytest.UsageError("--battery-device cuda: torch sees no GPU here; use --battery-device virtual")
    _chosen[0] = Battery(device, num_ranks)


def _has_gpu() -> bool:
    from tests.gpus import NUM_GPUS

    return NUM_GPUS > 0


def has_threads(item: pytest.Item) -> bool:
    plan = plan_of(item)
    return plan is not None and plan.kind == "thread"


def is_left_out(item: pytest.Item) -> bool:
    """Tell whether other numbers of ranks say as much: on eight threads, only what is about eight ranks."""
    plan, marker = plan_of(item), item.get_closest_marker("ranks")
    if plan is None or marker is None or plan.kind != "thread":
        return False
    return plan.num_ranks > _MOST_THREADS and min(marker.args[0]) <= _MOST_THREADS


def reason_to_skip(item: pytest.Item) -> str:
    """Say why a test has no meaning on the chosen device, or return ""."""
    host_only, plan = item.get_closest_marker("host_memory"), plan_of(item)
    if host_only is not None:
        return f"on a device: {host_only.args[0]}"
    if plan is not None and plan.gpus is None and chosen().device == "virtual":
        return "on a virtual GPU: too large"
    return ""


def on_device(test: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a test so that tensors without a device of their own are made on the rank's GPU."""

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> Any:
        import torch

        with torch.device("cuda", torch.cuda.current_device()):
            return test(*args, **kwargs)

    return run
