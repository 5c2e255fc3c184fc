"""Let a process use one real GPU, and only a part of its memory.

The limit takes effect with the first use of CUDA, so a rank that never uses a GPU never opens one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from phalanx.errors import UsageError
from phalanx.real_gpus.memory_shares import MemoryShare, in_gib


@dataclass(frozen=True)
class _GpuUse:
    index: int
    share: MemoryShare
    is_current: bool

    def __call__(self) -> None:
        import torch

        index = self.index % torch.cuda.device_count()
        if self.share.is_limited:
            total = torch.cuda.get_device_properties(index).total_memory
            allowed = self.share.for_tensors(total)
            if allowed <= 0:
                raise UsageError(
                    f"this rank may use {in_gib(int(self.share.fraction_of(total) * total))} of cuda:{index}, which "
                    f"is less than its CUDA context takes; use fewer ranks, or PHALANX_GPU_MEMORY=free"
                )
            with torch.cuda.device(index):  # torch makes the device current for it, and leaves it so
                torch.cuda.set_per_process_memory_fraction(min(1.0, allowed / total), index)
        if self.is_current:
            torch.cuda.set_device(index)


def use_gpu(index: int, share: MemoryShare, *, is_current: bool) -> None:
    """Let this process use no more than its share of a GPU, from its first use of CUDA on.

    Args:
        index: The number of the GPU in this process. Numbers beyond the last GPU begin again at 0.
        share: How much of its memory.
        is_current: Whether to make it the current device too.

    Raises:
        UsageError: CUDA is initialised, and the share is too small for it.
    """
    import torch

    queued: list[Any] = torch.cuda._queued_calls
    # A rank that serves several tests calls this for each of them.
    queued[:] = [each for each in queued if not isinstance(each[0], _GpuUse)]
    if share.is_limited or is_current:
        torch.cuda._lazy_call(_GpuUse(index, share, is_current))
