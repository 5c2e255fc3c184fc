"""Make the device type "virtual" known to torch, through the doors torch keeps open for device types of others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.cuda.nccl
from torch.utils.backend_registration import generate_methods_for_privateuse1_backend, rename_privateuse1_backend

from phalanx.devices.comm.torch_names import TORCH_NAMES
from phalanx.devices.library import Library
from phalanx.devices.own_face.indices import DEVICE_TYPE
from phalanx.devices.own_face.module import device_module
from phalanx.devices.request import Setup


def install(library: Library, setup: Setup) -> None:
    """Name the device type, and give torch its module, tensor methods and storage methods."""
    rename_privateuse1_backend(DEVICE_TYPE)
    torch._register_device_module(DEVICE_TYPE, device_module(library, setup.num_devices, setup.memory_bytes))
    generate_methods_for_privateuse1_backend(for_storage=True)
    if not torch.cuda.is_available():
        _serve_data_parallel()


def _serve_data_parallel() -> None:
    """Give nn.DataParallel what it calls.

    Only where there are no GPUs: beside them nn.DataParallel means the GPUs, and these names are CUDA's.
    """
    for name, function in TORCH_NAMES.items():
        setattr(torch._C, name, function)
    nccl: Any = torch.cuda.nccl
    nccl_available = nccl.is_available

    def is_available(tensors: Sequence[torch.Tensor]) -> bool:
        # torch warns about a build without NCCL before it looks where the tensors are.
        return not any(tensor.device.type == DEVICE_TYPE for tensor in tensors) and bool(nccl_available(tensors))

    nccl.is_available = is_available
