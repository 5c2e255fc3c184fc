"""torch.profiler with CUDA activities: it sees the operations, on the CPU where they run, and no kernels."""

from __future__ import annotations

from torch._C import _autograd, _profiler

from phalanx.patches import Names


def names() -> Names:
    """Return what keeps torch.profiler from asking a CUDA library for events, which would warn at each operation."""
    supported_elsewhere = _autograd._supported_activities

    def supported_activities() -> set[_profiler.ProfilerActivity]:
        return {*supported_elsewhere(), _profiler.ProfilerActivity.CUDA}

    return {
        "torch._C._autograd._supported_activities": supported_activities,
        "torch.autograd.profiler._supported_activities": supported_activities,
        "torch.profiler._supported_activities": supported_activities,
    }
