"""Real GPUs of a test: how many there are, which one a rank uses, and how much of its memory.

pytest's own process counts them without CUDA, because ranks are forked from it.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from phalanx.errors import UsageError
from phalanx.real_gpus.discovery import find_gpus, memory_of, visible_gpus
from phalanx.real_gpus.memory_shares import MemoryShare, check_shares, read_shares
from phalanx.settings import gpu_memory, set_environment, set_environment_defaults

_VARIABLE = "PHALANX_GPU_MEMORY"


@dataclass(frozen=True)
class RealGpus:
    """The GPUs that torch can use here; virtual ones if "cuda" means virtual GPUs in this process.

    Attributes:
        memory_bytes: How much memory each has; 0 if that is unknown.
        absence: Why there are none, or "".
    """

    memory_bytes: tuple[int, ...]
    absence: str = ""

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self.memory_bytes)


def look_for_gpus() -> RealGpus:
    """Count the GPUs that this process's ranks could use."""
    torch: Any = importlib.import_module("torch")
    from phalanx.groups import stream_order  # which imports torch; this module must not

    if stream_order.is_virtual("cuda"):
        return RealGpus((0,) * int(torch.cuda.device_count()))
    found = find_gpus()
    if torch.version.cuda is None:
        others = int(torch.cuda.device_count())  # torch for ROCm calls AMD GPUs "cuda" too
        why = "this torch is built without CUDA" if found else "there is no GPU here"
        return RealGpus((0,) * others, "" if others else why)
    names = visible_gpus(found)
    why = "CUDA_VISIBLE_DEVICES shows no GPU" if found else "there is no GPU here"
    return RealGpus(tuple(memory_of(name, found) for name in names), "" if names else why)


def check_gpus(gpus: RealGpus, num_ranks: int, backend: str) -> None:
    """Check that a test can run its ranks on the GPUs of this machine, which has at least one.

    Raises:
        UsageError: It can't.
    """
    if backend == "nccl" and gpus.count < num_ranks:
        raise UsageError(
            f'{num_ranks} ranks with backend="nccl" need {num_ranks} GPUs, one each; this machine has {gpus.count}. '
            f'Use backend="phalanx", whose ranks share a GPU, fewer ranks, or gpus="virtual"'
        )
    shares = _read_shares(gpus.count, num_ranks)
    name = _VARIABLE if gpu_memory() else 'device="cuda"'
    for index, memory_bytes in enumerate(gpus.memory_bytes):
        if shares[index :: gpus.count]:
            check_shares(shares[index :: gpus.count], name, f"cuda:{index}", memory_bytes)


def gpu_of(rank: int, gpus: RealGpus) -> int:
    """Return the number of a rank's GPU."""
    return rank % max(1, gpus.count)


def take_gpu(rank: int, num_ranks: int, gpus: RealGpus, *, is_thread: bool) -> None:
    """On a rank: choose its GPU and limit its memory. Both take effect when the rank first uses CUDA.

    For threads there is no limit, because they share the memory of their process.
    """
    index = gpu_of(rank, gpus)
    if is_thread:
        if gpus.count > 1:  # every thread has its own current device, so it is set now
            import torch

            torch.cuda.set_device(index)
        return
    from phalanx.real_gpus.limits import use_gpu  # imports torch; this module must not

    if gpus.count < num_ranks:
        # As with `phalanx run --gpus`, so that code that uses cuda:{LOCAL_RANK} finds its GPU.
        set_environment(LOCAL_RANK=str(index), PHALANX_LOCAL_RANK=str(rank))
    use_gpu(index, _read_shares(gpus.count, num_ranks)[rank], is_current=True)


def _read_shares(num_gpus: int, num_ranks: int) -> Sequence[MemoryShare]:
    num_sharing = [len(range(rank % num_gpus, num_ranks, num_gpus)) for rank in range(num_ranks)]
    return read_shares(gpu_memory() or "even", _VARIABLE, num_sharing)


def keep_forkable() -> None:
    """Make torch.cuda.is_available() ask NVML: otherwise forks of this process can't use CUDA.

    Test modules often call it when they are imported, to skip tests.
    """
    set_environment_defaults(PYTORCH_NVML_BASED_CUDA_CHECK="1")
