"""Statistics and limits of a device's memory, and memory by address."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import torch

from phalanx.patches import Names
from phalanx.virtual_gpus.torch_cuda.backends import Setting
from phalanx.virtual_gpus.torch_cuda.ordinals import checked
from phalanx.virtual_gpus.torch_cuda.streams import stream_of

if TYPE_CHECKING:
    from phalanx.virtual_gpus.library import Library


class _Addresses:
    """Memory that was allocated by address (torch.cuda.caching_allocator_alloc), kept until it is freed."""

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


def names(library: Library) -> Names:
    """Return what torch.cuda needs to count, limit and allocate memory."""
    addresses, caching, num_devices = _Addresses(library), Setting(True), library.num_devices

    def memory_used(device: object = None) -> int:
        free, total = torch.cuda.mem_get_info(device)  # type: ignore[arg-type]
        return total - free

    return {
        "torch._C._cuda_memoryStats": lambda device: _stats(checked(device, num_devices)),
        "torch._C._cuda_resetPeakMemoryStats": torch._C._accelerator_resetPeakStats,
        "torch._C._cuda_resetAccumulatedMemoryStats": torch._C._accelerator_resetAccumulatedStats,
        "torch._C._cuda_emptyCache": library.empty_cache,
        "torch._C._host_emptyCache": lambda: None,
        "torch._C._cuda_setMemoryFraction": lambda fraction, device: library.set_memory_fraction(
            checked(device, num_devices), fraction
        ),
        "torch._C._cuda_getMemoryFraction": lambda device: library.memory_fraction(checked(device, num_devices)),
        "torch._C._cuda_cudaCachingAllocator_raw_alloc": addresses.allocate,
        "torch._C._cuda_cudaCachingAllocator_raw_delete": addresses.free,
        "torch._C._cuda_cudaCachingAllocator_enable": caching.set,
        "torch._C._cuda_cudaCachingAllocator_is_enabled": caching.get,
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
