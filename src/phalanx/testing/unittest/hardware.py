"""The hardware of this machine, for suites that ask for it."""

from __future__ import annotations

import functools
import subprocess

import torch

from phalanx.testing.unittest.torch_case import TEST_CUDA, TEST_HPU, TEST_WITH_ROCM, TEST_XPU, common_utils

ACCELERATOR_DIST_BACKENDS = ["nccl", "xccl", "hccl"]
DDP_RANK_DEVICES = ["cuda", "xpu"]
HAS_ACCELERATOR = TEST_CUDA or TEST_HPU or TEST_XPU
_SYMMETRIC_MEMORY_ARCHS = ("gfx942", "gfx950")


def device_counts() -> list[int]:
    """Return the number of devices of each kind of accelerator in this machine."""
    counts = []
    if torch.cuda.is_available():
        counts.append(torch.cuda.device_count())
    if TEST_HPU:
        counts.append(torch.get_device_module("hpu").device_count())
    if TEST_XPU:
        counts.append(torch.xpu.device_count())
    return counts


def at_least_x_gpu(x: int) -> bool:
    """Tell whether there are that many accelerators of one kind."""
    return any(count >= x for count in device_counts())


def requires_ddp_rank(device: str) -> bool:
    """Tell whether DDP needs `device_ids` with the rank's own device for this device type."""
    return device in DDP_RANK_DEVICES


def init_multigpu_helper(world_size: int, backend: str) -> dict[int, list[int]]:
    """Assign GPUs to ranks: one per rank if there are enough; otherwise each list has count // world_size GPUs."""
    counts = device_counts()
    count = counts[-1] if counts else 0
    each = 1 if world_size <= count else count // world_size
    return {rank: list(range(count))[rank * each : (rank + 1) * each] for rank in range(world_size)}


def sm_is_or_higher_than(device: torch.device, major: int, minor: int) -> bool:
    """Tell whether a CUDA device has this compute capability; True for other devices, False for ROCm."""
    if device.type != "cuda":
        return True
    if torch.version.hip is not None:
        return False
    return torch.cuda.get_device_capability(device) >= (major, minor)


def evaluate_platform_supports_symm_mem() -> bool:
    """Tell whether GPUs here can share symmetric memory."""
    if not TEST_CUDA:
        return False
    if not TEST_WITH_ROCM:
        return True
    return any(arch in rocm_arch() for arch in _SYMMETRIC_MEMORY_ARCHS)


PLATFORM_SUPPORTS_SYMM_MEM = common_utils.LazyVal(evaluate_platform_supports_symm_mem)


def rocm_arch() -> str:
    """Return the architecture of the first ROCm device."""
    return str(torch.cuda.get_device_properties(0).gcnArchName)


@functools.cache
def has_efa() -> bool:
    """Tell whether libfabric finds an EFA interface; it looks once."""
    try:
        asked = subprocess.run(["fi_info", "-p", "efa", "-t", "FI_EP_RDM"], check=False, capture_output=True)
    except FileNotFoundError:
        return False
    return asked.returncode == 0


def tp_transports() -> list[str] | None:
    """Return the transports for TensorPipe: with EFA, those without InfiniBand; None for all."""
    return ["shm", "uv"] if has_efa() else None
