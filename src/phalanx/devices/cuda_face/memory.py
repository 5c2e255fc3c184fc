"""Statistics and limits of a device's memory, and memory by address."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import torch

from phalanx.devices.cuda_face.names import Names
from phalanx.devices.cuda_face.ordinals import checked
from phalanx.devices.cuda_face.streams import stream_of

if TYPE_CHECKING:
    from phalanx.devices.library import Library


class _Limits:
    """How much of each device torch.cuda.set_per_process_memory_fraction() has left to this process."""

    def __init__(self, library: Library, memory_bytes: int) -> None:
        self._library = library
        self._memory_bytes = memory_bytes
        self._fractions = [1.0] * library.num_devices

    def set_fraction(self, fraction: float, device: int) -> None:
        self._fractions[checked(device, len(self._fractions))] = fraction
        self._library.set_limit(device, int(self._memory_bytes * fraction))

    def fraction(self, device: int) -> float:
        return self._fractions[checked(device, len(self._fractions))]


class _Addresses:
    """Memory handed out by address (torch.cuda.caching_allocator_alloc), kept until it is given back."""

    def __init__(self, library: Library) -> None:
        self._library = library
        self._tensors: dict[int, torch.Tensor] = {}

    def allocate(self, size_bytes: int, stream_handle: int) -> int:
        device, stream = stream_of(self._library, stream_handle, self._library.current_device())
        with torch.cuda.stream(torch.cuda.Stream(stream_id=stream, device_index=device)):
            tensor = torch.empty(size_bytes, dtype=torch.uint8, device=torch.device("cuda", device))
        if size_bytes:
            self._tensors[tensor.data_ptr()] = tensor
        return tensor.data_ptr()

    def free(self, address: int) -> None:
        if address and self._tensors.pop(address, None) is None:
            raise RuntimeError(f"invalid device pointer: {address:#x}")


class _Switch:
    """A setting that changes nothing on a virtual GPU and is remembered for whoever asks."""

    def __init__(self, value: bool) -> None:
        self.value = value

    def set(self, value: bool) -> None:
        self.value = value


def names(library: Library, memory_bytes: int) -> Names:
    """Return what torch.cuda needs to count, limit and hand out memory."""
    limits, addresses, caching = _Limits(library, memory_bytes), _Addresses(library), _Switch(True)

    def memory_used(device: object = None) -> int:
        free, total = torch.cuda.mem_get_info(device)  # type: ignore[arg-type]
        return total - free

    return {
        "torch._C._cuda_memoryStats": lambda device: _stats(checked(device, library.num_devices)),
        "torch._C._cuda_resetPeakMemoryStats": torch._C._accelerator_resetPeakStats,
        "torch._C._cuda_resetAccumulatedMemoryStats": torch._C._accelerator_resetAccumulatedStats,
        "torch._C._cuda_emptyCache": library.empty_cache,
        "torch._C._host_emptyCache": lambda: None,
        "torch._C._cuda_setMemoryFraction": limits.set_fraction,
        "torch._C._cuda_getMemoryFraction": limits.fraction,
        "torch._C._cuda_cudaCachingAllocator_raw_alloc": addresses.allocate,
        "torch._C._cuda_cudaCachingAllocator_raw_delete": addresses.free,
        "torch._C._cuda_cudaCachingAllocator_enable": caching.set,
        "torch._C._cuda_cudaCachingAllocator_is_enabled": lambda: caching.value,
        "torch._C._cuda_getAllocatorBackend": lambda: "native",
        "torch._C._cuda_record_memory_history": _record_history,
        "torch._C._cuda_record_memory_history_legacy": _record_history,
        "torch._C._cuda_isHistoryEnabled": lambda: False,
        "torch._C._cuda_allocationTraceback": lambda address: None,
        "torch.cuda.device_memory_used": memory_used,
    }


def _stats(device: int) -> dict[str, object]:
    stats: dict[str, object] = torch._C._accelerator_getDeviceStats(device)
    return stats


def _record_history(enabled: object = None, *_args: object, **_options: object) -> None:
    if enabled:
        warnings.warn(
            "this is a virtual GPU: it keeps no history of its memory. A snapshot shows what is in use at that time.",
            stacklevel=4,
        )
