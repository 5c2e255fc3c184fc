"""How much memory the virtual devices use."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import torch

from phalanx.devices.library import Library
from phalanx.devices.own_face.indices import AnyDevice, Indices
from phalanx.errors import UsageError


class Memory:
    """The memory functions of torch.virtual."""

    def __init__(self, indices: Indices, library: Library, memory_bytes: int) -> None:
        self._indices = indices
        self._library = library
        self._memory_bytes = memory_bytes
        self._fractions: dict[int, float] = {}

    def memory_stats(self, device: AnyDevice = None) -> OrderedDict[str, Any]:
        """Return all counters of a device, with torch's names."""
        return torch.accelerator.memory_stats(self._indices.of(device))

    def memory_allocated(self, device: AnyDevice = None) -> int:
        """Return the bytes that tensors of a device take."""
        return int(torch.accelerator.memory_allocated(self._indices.of(device)))

    def max_memory_allocated(self, device: AnyDevice = None) -> int:
        """Return the most bytes that tensors of a device have taken."""
        return int(torch.accelerator.max_memory_allocated(self._indices.of(device)))

    def memory_reserved(self, device: AnyDevice = None) -> int:
        """Return the bytes that the allocator holds on a device."""
        return int(torch.accelerator.memory_reserved(self._indices.of(device)))

    def max_memory_reserved(self, device: AnyDevice = None) -> int:
        """Return the most bytes that the allocator has held on a device."""
        return int(torch.accelerator.max_memory_reserved(self._indices.of(device)))

    def reset_peak_memory_stats(self, device: AnyDevice = None) -> None:
        """Let the peaks start again at what is used now."""
        torch.accelerator.reset_peak_memory_stats(self._indices.of(device))

    def reset_accumulated_memory_stats(self, device: AnyDevice = None) -> None:
        """Let the sums start again at zero."""
        torch.accelerator.reset_accumulated_memory_stats(self._indices.of(device))

    def empty_cache(self) -> None:
        """Give memory that no tensor uses back, on all devices."""
        torch.accelerator.empty_cache()

    def mem_get_info(self, device: AnyDevice = None) -> tuple[int, int]:
        """Return the free bytes of a device, and all it has."""
        free, total = torch.accelerator.get_memory_info(self._indices.of(device))
        return int(free), int(total)

    def device_memory_used(self, device: AnyDevice = None) -> int:
        """Return the bytes of a device that are not free."""
        free, total = self.mem_get_info(device)
        return total - free

    def set_per_process_memory_fraction(self, fraction: float, device: AnyDevice = None) -> None:
        """Let a device hold a part of its memory only.

        Raises:
            UsageError: The part is not between 0 and 1.
        """
        if not 0 <= fraction <= 1:
            raise UsageError(f"a memory fraction lies between 0 and 1, and {fraction} does not")
        index = self._indices.of(device)
        self._library.set_limit(index, int(fraction * self._memory_bytes))
        self._fractions[index] = fraction

    def get_per_process_memory_fraction(self, device: AnyDevice = None) -> float:
        """Return the part of its memory that a device may hold."""
        return self._fractions.get(self._indices.of(device), 1.0)

    def memory_snapshot(self) -> list[dict[str, Any]]:
        """Return every block of every device, as torch.cuda.memory_snapshot does."""
        devices = range(self._library.num_devices)
        return [_segment(device, block) for device in devices for block in self._library.blocks(device)]

    def memory_summary(self, device: AnyDevice = None, abbreviated: bool = False) -> str:
        """Return the memory of a device in words."""
        index = self._indices.of(device)
        free, total = self.mem_get_info(index)
        return (
            f"virtual:{index}: {self.memory_allocated(index):,} bytes in tensors, at most "
            f"{self.max_memory_allocated(index):,}; {free:,} of {total:,} free"
        )


def _segment(device: int, block: Any) -> dict[str, Any]:
    size, requested = block.size_bytes, block.requested_bytes
    inner = {"address": block.address, "size": size, "requested_size": requested, "state": "active_allocated"}
    return {
        "device": device,
        "address": block.address,
        "stream": block.stream,
        "segment_type": "small" if requested < 1 << 20 else "large",
        "total_size": size,
        "allocated_size": size,
        "active_size": size,
        "requested_size": requested,
        "blocks": [inner],
    }
