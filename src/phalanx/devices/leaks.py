"""Check that a block of code gives back the device memory it takes.

It compares what the allocator has handed out and what the driver says is in use. Only growth that both see is a leak.
"""

from __future__ import annotations

import functools
import gc
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import ParamSpec, TypeVar

import torch

from phalanx.devices.comm.placement import active_device_type

P = ParamSpec("P")
R = TypeVar("R")

# On real devices the driver's number lags behind: the memory may be free a moment later.
_NUM_LOOKS = 3


@dataclass(frozen=True)
class _Usage:
    allocator_bytes: int
    driver_bytes: int


class no_leaks:
    """A context, or a decorator, that raises RuntimeError when tensors of any device outlive it.

    with no_leaks("one training step"):
        step()

    If the block raises, nothing is checked: what the exception refers to is no leak. If only the allocator sees a
    growth, you get a RuntimeWarning. Contexts may be nested; one object is for one thread.

    Args:
        where: The name of the block in the error. For a decorated function it is the name of the function.
    """

    def __init__(self, where: str = "a block") -> None:
        self._where = where
        self._before: list[list[_Usage]] = []

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        """Check every call of a function."""

        @functools.wraps(function)
        def checked(*args: P.args, **kwargs: P.kwargs) -> R:
            with no_leaks(function.__qualname__):
                return function(*args, **kwargs)

        return checked

    def __enter__(self) -> None:
        _release()
        self._before.append(_usages())

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        before = self._before.pop()
        if kind is not None or not _grown(before, _usages()):
            return
        _release()
        for index, usage in enumerate(before):
            self._check(index, usage)

    def _check(self, index: int, before: _Usage) -> None:
        for _ in range(_NUM_LOOKS):
            after = _usages()[index]
            if after.allocator_bytes <= before.allocator_bytes:
                return
        kind = active_device_type().upper()
        numbers = (
            f"Caching allocator allocated memory was {before.allocator_bytes} and is now reported as "
            f"{after.allocator_bytes} on device {index}. {kind} driver allocated memory was {before.driver_bytes} "
            f"and is now {after.driver_bytes}."
        )
        if after.driver_bytes > before.driver_bytes:
            raise RuntimeError(f"{kind} driver API confirmed a leak in {self._where}! {numbers}")
        unconfirmed = f"{kind} caching allocator reports a memory leak not verified by the driver API in {self._where}!"
        warnings.warn(f"{unconfirmed} {numbers}", RuntimeWarning, stacklevel=3)


def _usages() -> list[_Usage]:
    module = torch.get_device_module(active_device_type())
    usages = []
    for index in range(module.device_count()):
        free, total = module.mem_get_info(index)
        usages.append(_Usage(module.memory_allocated(index), total - free))
    return usages


def _grown(before: list[_Usage], after: list[_Usage]) -> bool:
    return any(new.allocator_bytes > old.allocator_bytes for old, new in zip(before, after, strict=True))


def _release() -> None:
    gc.collect()
    torch.get_device_module(active_device_type()).empty_cache()
