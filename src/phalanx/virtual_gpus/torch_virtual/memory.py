"""How much memory the virtual devices use."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

from phalanx.errors import UsageError
from phalanx.virtual_gpus.library import Library
from phalanx.virtual_gpus.snapshots import segment
from phalanx.virtual_gpus.torch_virtual.indices import AnyDevice, Indices

_COUNTERS = (
    torch.accelerator.memory_stats,
    torch.accelerator.memory_allocated,
    torch.accelerator.max_memory_allocated,
    torch.accelerator.memory_reserved,
    torch.accelerator.max_memory_reserved,
    torch.accelerator.reset_peak_memory_stats,
    torch.accelerator.reset_accumulated_memory_stats,
)


def counters(indices: Indices) -> dict[str, Callable[..., Any]]:
    """Return the functions of torch.accelerator for a device's counters; they accept a device in any form."""
    return {function.__name__: _of_any_device(function, indices) for function in _COUNTERS}


def _of_any_device(function: Callable[..., Any], indices: Indices) -> Callable[..., Any]:
    @functools.wraps(function)
    def of_device(device: AnyDevice = None) -> Any:
        return function(indices.of(device))

    return of_device


class Memory:
    """The memory functions of torch.virtual."""

    def __init__(self, indices: Indices, library: Library) -> None:
        self._indices = indices
        self._library = library

    def empty_cache(self) -> None:
        """Release memory that no tensor uses, on all devices."""
        torch.accelerator.empty_cache()

    def mem_get_info(self, device: AnyDevice = None) -> tuple[int, int]:
        """Return the free and the total bytes of a device."""
        free, total = torch.accelerator.get_memory_info(self._indices.of(device))
        return int(free), int(total)

    def device_memory_used(self, device: AnyDevice = None) -> int:
        """Return the bytes of a device that are not free."""
        free, total = self.mem_get_info(device)
        return total - free

    def set_per_process_memory_fraction(self, fraction: float, device: AnyDevice = None) -> None:
        """Limit a device to a part of its memory.

        Raises:
            UsageError: The part is not between 0 and 1.
        """
        if not 0 <= fraction <= 1:
            raise UsageError(f"a memory fraction lies between 0 and 1, and {fraction} does not")
        self._library.set_memory_fraction(self._indices.of(device), fraction)

    def get_per_process_memory_fraction(self, device: AnyDevice = None) -> float:
        """Return the part of its memory that a device may use."""
        return self._library.memory_fraction(self._indices.of(device))

    def memory_snapshot(self) -> list[dict[str, Any]]:
        """Return every block of every device, as torch.cuda.memory_snapshot does."""
        return [segment(device, block, block.stream) for device, block in self._library.blocks()]

    def memory_summary(self, device: AnyDevice = None, abbreviated: bool = False) -> str:
        """Return a text about the memory of a device."""
        index = self._indices.of(device)
        free, total = self.mem_get_info(index)
        used, most = torch.accelerator.memory_allocated(index), torch.accelerator.max_memory_allocated(index)
        return f"virtual:{index}: {used:,} bytes in tensors, at most {most:,}; {free:,} of {total:,} free"
