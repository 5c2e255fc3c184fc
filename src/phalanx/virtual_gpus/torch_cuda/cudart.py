"""The functions of CUDA's runtime that torch binds, as torch.cuda.cudart() returns them."""

from __future__ import annotations

import ctypes
import enum
from typing import TYPE_CHECKING

import torch

from phalanx.patches import Names
from phalanx.virtual_gpus.torch_cuda.ordinals import checked
from phalanx.virtual_gpus.torch_cuda.refusals import refusal
from phalanx.virtual_gpus.torch_cuda.streams import stream_of

if TYPE_CHECKING:
    from phalanx.virtual_gpus.library import Library


class _CudaError(enum.IntEnum):
    success = 0
    invalid_value = 1


class VirtualRuntime:
    """Stands for CUDA's runtime library."""

    cudaError = _CudaError
    cudaProfilerStart = staticmethod(
        refusal(
            "torch.cuda.profiler",
            "there is no GPU that a profiler of NVIDIA's could look at",
            "use torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]): operations run on the CPU",
        )
    )
    cudaProfilerStop = cudaProfilerStart

    def __init__(self, library: Library) -> None:
        self._library = library

    def cudaGetErrorString(self, error: int) -> str:
        """Return what an error's number means."""
        return "no error" if error == _CudaError.success else "invalid argument"

    def cudaGetLastError(self) -> int:
        """Return success: errors are raised where they happen."""
        return _CudaError.success

    def cudaMemGetInfo(self, device: int) -> tuple[int, int]:
        """Return the free and the total memory of a device, in bytes."""
        stats = torch._C._accelerator_getDeviceStats(checked(device, self._library.num_devices))
        total = self._library.memory_bytes
        return total - int(stats["reserved_bytes"]["all"]["current"]), total

    def cudaStreamCreate(self, address: int) -> int:
        """Write a new stream's number to an address."""
        ctypes.c_ulonglong.from_address(address).value = torch.cuda.Stream().cuda_stream
        return _CudaError.success

    def cudaStreamDestroy(self, handle: int) -> int:
        """Release a stream; there is nothing to free."""
        stream_of(self._library, handle, self._library.current_device())
        return _CudaError.success

    def cudaHostRegister(self, address: int, size_bytes: int, flags: int) -> int:
        """Do nothing: a virtual GPU uses host memory, and copies from all of it are correct."""
        return _CudaError.success

    def cudaHostUnregister(self, address: int) -> int:
        """Do nothing, as cudaHostRegister did."""
        return _CudaError.success


def names(library: Library) -> Names:
    """Return the runtime, under both names torch has for it."""
    runtime = VirtualRuntime(library)
    return {"torch._C._cudart": runtime, "torch.cuda._cudart": runtime}
