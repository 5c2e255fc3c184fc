"""What a virtual GPU says about itself: the facts of the GPU that it claims to be, and the memory it was given."""

from __future__ import annotations

import uuid
from dataclasses import dataclass

import torch

from phalanx.gpu_models import PLAIN, GpuModel, find_gpu_model, limits_of
from phalanx.patches import Names
from phalanx.virtual_gpus.request import Setup
from phalanx.virtual_gpus.torch_cuda.ordinals import checked

_RESERVED_SHARED_KIB = 1  # of a multiprocessor's shared memory the system keeps so much per block, from 8.0 on
_DTYPES = {value for value in vars(torch).values() if isinstance(value, torch.dtype)}


@dataclass(frozen=True)
class CudaDeviceProperties:
    """The result of torch.cuda.get_device_properties(), with torch's names."""

    total_memory: int
    uuid: uuid.UUID
    pci_bus_id: int
    name: str
    major: int
    minor: int
    multi_processor_count: int
    max_threads_per_multi_processor: int
    shared_memory_per_block_optin: int
    shared_memory_per_multiprocessor: int
    L2_cache_size: int
    gcnArchName: str  # the architecture of AMD GPUs; on others, torch has the name here
    warp_size: int = 32
    max_threads_per_block: int = 1024
    regs_per_multiprocessor: int = 65536
    shared_memory_per_block: int = 48 << 10
    clock_rate: int = 1_000_000  # in kHz; torch.cuda._sleep counts the same cycles
    memory_clock_rate: int = 2_619_000
    memory_bus_width: int = 5120
    is_integrated: int = 0
    is_multi_gpu_board: int = 0
    pci_device_id: int = 0
    pci_domain_id: int = 0

    def __repr__(self) -> str:
        return (
            f"_CudaDeviceProperties(name='{self.name}', major={self.major}, minor={self.minor}, "
            f"total_memory={self.total_memory >> 20}MB, multi_processor_count={self.multi_processor_count}, "
            f"uuid={self.uuid}, pci_bus_id={self.pci_bus_id}, pci_device_id={self.pci_device_id}, "
            f"pci_domain_id={self.pci_domain_id}, L2_cache_size={self.L2_cache_size >> 20}MB)"
        )


def names(num_devices: int, setup: Setup) -> Names:
    """Return what torch.cuda needs to describe devices."""
    model = find_gpu_model(setup.gpu, "gpu")
    properties = [_properties_of(index, model, setup.memory_bytes) for index in range(num_devices)]
    return {
        "torch._C._CudaDeviceProperties": CudaDeviceProperties,
        "torch._C._cuda_getArchFlags": lambda: model.architecture,
        "torch._C._accelerator_getDeviceCapability": lambda index: {"supported_dtypes": set(_DTYPES)},
        "torch.cuda._CudaDeviceProperties": CudaDeviceProperties,
        "torch.cuda._get_device_properties": lambda index: properties[checked(index, num_devices)],
    }


def _properties_of(index: int, model: GpuModel, memory_bytes: int) -> CudaDeviceProperties:
    name = name_of(model)
    limits = limits_of(model)
    reserved_kib = _RESERVED_SHARED_KIB if model.capability >= (8, 0) else 0
    return CudaDeviceProperties(
        total_memory=memory_bytes,
        # It is the same in every process, as a GPU's is: programs compare it to find out whether ranks share a device.
        uuid=uuid.uuid5(uuid.NAMESPACE_URL, f"phalanx:virtual-gpu:{index}"),
        pci_bus_id=index + 1,
        name=name,
        major=model.capability[0],
        minor=model.capability[1],
        multi_processor_count=model.num_multiprocessors,
        max_threads_per_multi_processor=limits.max_threads,
        shared_memory_per_block_optin=(limits.shared_kib - reserved_kib) << 10,
        shared_memory_per_multiprocessor=limits.shared_kib << 10,
        L2_cache_size=model.l2_mib << 20,
        gcnArchName=name,
    )


def name_of(model: GpuModel) -> str:
    """Return the name of a device, which always has "Virtual GPU" in it, so that nobody takes it for a real one."""
    return model.name if model.key == PLAIN else f"{model.name} (Virtual GPU)"
