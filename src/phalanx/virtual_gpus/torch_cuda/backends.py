"""torch.backends.cuda and torch.backends.cudnn: settings are remembered, and there is no cuDNN."""

from __future__ import annotations

import warnings
from typing import Any

from phalanx.patches import Names

_WORKSPACE_BYTES = 32 << 20
_BENCHMARK_LIMIT = 10
_FFT_PLANS = 4096


class Setting:
    """A value that can be set and read, and has no effect here."""

    def __init__(self, value: Any) -> None:
        self._initial = value
        self._value = value

    def get(self) -> Any:
        """Return it."""
        return self._value

    def set(self, value: Any) -> None:
        """Set it."""
        self._value = value

    def reset(self) -> None:
        """Set it to its first value."""
        self._value = self._initial


class _PlansOfDevice:
    """An attribute of a device's cache of FFT plans, for the object that torch.backends.cuda has for it."""

    def __init__(self) -> None:
        self._values: dict[int, int] = {}

    def __get__(self, cache: Any, _owner: type) -> int:
        return self._values.get(cache.device_index, _FFT_PLANS)

    def __set__(self, cache: Any, value: int) -> None:
        self._values[cache.device_index] = value


def names() -> Names:
    """Return the settings that a torch without CUDA lacks."""
    workspace, workspace_lt = Setting(_WORKSPACE_BYTES), Setting(_WORKSPACE_BYTES)
    limit, empties_cache, sync_mode = Setting(_BENCHMARK_LIMIT), Setting(False), Setting(0)

    def set_sync_mode(mode: int) -> None:
        if mode:
            warnings.warn(
                "this is a virtual GPU: it does not watch for operations that wait for the device, so sync debug mode "
                "finds none here",
                stacklevel=3,
            )
        sync_mode.set(mode)

    return {
        "torch._C._has_cudnn": False,
        "torch.backends.cudnn._init": lambda: False,
        "torch._C._cuda_get_cudnn_benchmark_limit": limit.get,
        "torch._C._cuda_set_cudnn_benchmark_limit": limit.set,
        "torch._C._cuda_get_conv_benchmark_empty_cache": empties_cache.get,
        "torch._C._cudnn_set_conv_benchmark_empty_cache": empties_cache.set,
        "torch._C._cuda_getCurrentBlasHandle": lambda: 0,
        "torch._C._cuda_getCurrentSolverHandle": lambda: 0,
        "torch._C._cuda_clearCublasWorkspaces": lambda: None,
        "torch._C._cuda_getCublasWorkspaceSize": workspace.get,
        "torch._C._cuda_setCublasWorkspaceSize": workspace.set,
        "torch._C._cuda_resetCublasWorkspaceSize": workspace.reset,
        "torch._C._cuda_getCublasLtWorkspaceSize": workspace_lt.get,
        "torch._C._cuda_setCublasLtWorkspaceSize": workspace_lt.set,
        "torch._C._cuda_resetCublasLtWorkspaceSize": workspace_lt.reset,
        "torch._C._cuda_get_sync_debug_mode": sync_mode.get,
        "torch._C._cuda_set_sync_debug_mode": set_sync_mode,
        "torch.backends.cuda.cuFFTPlanCache.size": 0,
        "torch.backends.cuda.cuFFTPlanCache.max_size": _PlansOfDevice(),
        "torch.backends.cuda.cuFFTPlanCache.clear": lambda self: None,
    }
