"""Register the device type "virtual" with torch, through torch's extension points."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.cuda.nccl
from torch.utils.backend_registration import generate_methods_for_privateuse1_backend, rename_privateuse1_backend

from phalanx.devices.comm import torch_names
from phalanx.patches import Patches
from phalanx.virtual_gpus.library import Library
from phalanx.virtual_gpus.request import Setup
from phalanx.virtual_gpus.torch_virtual.indices import DEVICE_TYPE
from phalanx.virtual_gpus.torch_virtual.module import device_module

_patches = Patches(
    'virtual GPUs are set up with face="virtual", and there are no real ones',
    undo="never: torch keeps a device type for the rest of the process, and tensors of it may exist",
)


def install(library: Library, setup: Setup) -> None:
    """Name the device type, and give torch its module, tensor methods and storage methods."""
    rename_privateuse1_backend(DEVICE_TYPE)
    torch._register_device_module(DEVICE_TYPE, device_module(library, setup.num_devices, setup.memory_bytes))
    generate_methods_for_privateuse1_backend(for_storage=True)
    if not torch.cuda.is_available():
        _serve_data_parallel()


def _serve_data_parallel() -> None:
    """Give nn.DataParallel what it calls.

    Only if there are no GPUs: otherwise nn.DataParallel uses the GPUs, and these names belong to CUDA.
    """
    _patches.replace_all(torch_names.names(), "nn.DataParallel calls them")

    def with_virtual_devices(is_available: Callable[..., bool]) -> Callable[..., bool]:
        def is_available_for(tensors: Sequence[torch.Tensor]) -> bool:
            return not any(tensor.device.type == DEVICE_TYPE for tensor in tensors) and bool(is_available(tensors))

        return is_available_for

    why = "torch warns about a build without NCCL before it looks where the tensors are"
    _patches.wrap(["torch.cuda.nccl.is_available"], with_virtual_devices, why)
