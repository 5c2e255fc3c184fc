"""What a virtual GPU says about itself: the numbers of a GPU of capability 9.0, and the memory it was given."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field

import torch

from phalanx.patches import Names
from phalanx.virtual_gpus.torch_cuda.ordinals import checked

NAME = "Virtual GPU (phalanx)"
ARCHITECTURE = "sm_90"
_DTYPES = {value for value in vars(torch).values() if isinstance(value, torch.dtype)}


@dataclass(frozen=True)
class VirtualDeviceProperties:
    """The result of torch.cuda.get_device_properties(), with torch's names."""

    total_memory: int
    uuid: uuid.UUID
    pci_bus_id: int
    name: str = NAME
    major: int = 9
    minor: int = 0
    multi_processor_count: int = 132
    warp_size: int = 32
    max_threads_per_multi_processor: int = 2048
    max_threads_per_block: int = 1024
    regs_per_multiprocessor: int = 65536
    shared_memory_per_block: int = 48 << 10
    shared_memory_per_block_optin: int = 227 << 10
    shared_memory_per_multiprocessor: int = 228 << 10
    L2_cache_size: int = 50 << 20
    clock_rate: int = 1_000_000  # in kHz; torch.cuda._sleep counts the same cycles
    memory_clock_rate: int = 2_619_000
    memory_bus_width: int = 5120
    is_integrated: int = 0
    is_multi_gpu_board: int = 0
    pci_device_id: int = 0
    pci_domain_id: int = 0
    gcnArchName: str = field(default=NAME)  # the architecture of AMD GPUs; on others, torch has the name here

    def __repr__(self) -> str:
        return (
            f"_CudaDeviceProperties(name='{self.name}', major={self.major}, minor={self.minor}, "
            f"total_memory={self.total_memory >> 20}MB, multi_processor_count={self.multi_processor_count}, "
            f"uuid={self.uuid}, pci_bus_id={self.pci_bus_id}, pci_device_id={self.pci_device_id}, "
            f"pci_domain_id={self.pci_domain_id}, L2_cache_size={self.L2_cache_size >> 20}MB)"
        )


def names(num_devices: int, memory_bytes: int) -> Names:
    """Return what torch.cuda needs to describe devices."""
    properties = [_properties_of(index, memory_bytes) for index in range(num_devices)]
    return {
        "torch._C._CudaDeviceProperties": VirtualDeviceProperties,
        "torch._C._cuda_getArchFlags": lambda: ARCHITECTURE,
        "torch._C._accelerator_getDeviceCapability": lambda index: {"supported_dtypes": set(_DTYPES)},
        "torch.cuda._CudaDeviceProperties": VirtualDeviceProperties,
        "torch.cuda._get_device_properties": lambda index: properties[checked(index, num_devices)],
    }


def _properties_of(index: int, memory_bytes: int) -> VirtualDeviceProperties:
    # It is the same in every process, as a GPU's is: programs compare it to find out whether two ranks share a device.
    identity = uuid.uuid5(uuid.NAMESPACE_URL, f"phalanx:virtual-gpu:{index}")
    return VirtualDeviceProperties(total_memory=memory_bytes, uuid=identity, pci_bus_id=index + 1)
