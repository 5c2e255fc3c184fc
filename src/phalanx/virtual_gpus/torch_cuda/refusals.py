"""What only a real GPU can do: each raises an error that says so, and what to do instead."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

from phalanx.errors import UsageError
from phalanx.patches import Names


def refusal(what: str, why: str, instead: str) -> Callable[..., NoReturn]:
    """Return a function that raises a UsageError, whatever it is given."""

    def refuse(*_args: Any, **_options: Any) -> NoReturn:
        raise UsageError(f"{what}: this is a virtual GPU: {why}\n  do       {instead}")

    return refuse


_no_sensors = refusal(
    "utilization, temperature, power and clock (NVML)",
    "it has no sensors and no driver",
    "leave these out of the log when torch.cuda.get_device_name() contains 'Virtual GPU'",
)
_no_processes = refusal(
    "torch.cuda.list_gpu_processes()",
    "it belongs to this process alone and no driver keeps a list",
    "use torch.cuda.memory_summary() for this process",
)
_no_graphs = refusal(
    "CUDA graphs (torch.cuda.CUDAGraph, torch.cuda.graph, make_graphed_callables)",
    "operations run at once, so there is nothing to record and replay",
    "switch CUDA graphs off on virtual GPUs and call the function itself; torchtitan's option for that is "
    "--training.disable_cuda_graphs",
)
_no_kernels = refusal(
    "a CUDA kernel compiled at run time (jiterator, torch.cuda._compile_kernel)",
    "it has no processor of its own that could run CUDA code",
    "write the operation with torch's functions, or give it a CPU version for tests",
)
_no_triton = refusal(
    "a Triton kernel",
    "it has no processor of its own that could run Triton code",
    "call the operation written with torch's functions when torch.cuda.get_device_name() contains 'Virtual GPU', "
    "or run the kernel with TRITON_INTERPRET=1 on CPU tensors",
)
_no_pools = refusal(
    "torch.cuda.MemPool",
    "memory is counted, not taken from pools",
    "leave the pool out; torch.cuda.set_per_process_memory_fraction() limits memory here too",
)
_no_allocators = refusal(
    "another allocator (CUDAPluggableAllocator, change_current_allocator)",
    "its memory is the host's, from torch's own CPU allocator",
    "leave the allocator out on a virtual GPU",
)
_no_host_statistics = refusal(
    "torch.cuda.host_memory_stats()",
    "pinned memory is not counted here",
    "use torch.cuda.memory_stats() for the device's memory",
)
_no_tuning = refusal(
    "torch.cuda.tunable",
    "there are no GPU kernels to choose from",
    "leave tuning out on a virtual GPU",
)
_no_contexts = refusal(
    "torch.cuda.GreenContext",
    "it has no multiprocessors to share out",
    "leave green contexts out on a virtual GPU",
)
_no_files = refusal(
    "torch.cuda.gds (GPUDirect storage)",
    "its memory is the host's",
    "use torch.save() and torch.load()",
)


TRITON_MODULE = "triton.runtime.driver"


def triton_names() -> Names:
    """Return the function that Triton calls to find a device."""
    return {f"{TRITON_MODULE}._create_driver": _no_triton}


def names() -> Names:
    """Return the refusals, and a few functions that work."""
    return {
        "torch._C._CUDAGraph.__new__": _no_graphs,
        "torch._C._graph_pool_handle": _no_graphs,
        "torch.cuda.graphs._graph_pool_handle": _no_graphs,
        "torch._C._cuda_isCurrentStreamCapturing": lambda: False,
        "torch.cuda.graphs._cuda_isCurrentStreamCapturing": lambda: False,
        "torch._C._cuda_CUDAAllocator_AllocatorState": type("_cuda_CUDAAllocator_AllocatorState", (), {}),
        "torch._C._MemPool.__new__": _no_pools,
        "torch._C._cuda_customAllocator": _no_allocators,
        "torch._C._cuda_changeCurrentAllocator": _no_allocators,
        "torch._C._cuda_getAllocator": _no_allocators,
        "torch._C._cuda_hostMemoryStats": _no_host_statistics,
        "torch._C._cuda_resetAccumulatedHostMemoryStats": _no_host_statistics,
        "torch._C._cuda_resetPeakHostMemoryStats": _no_host_statistics,
        "torch._C._cuda_cudaHostAllocator": _no_allocators,
        "torch._C._cuda_jiterator_compile_and_launch_kernel": _no_kernels,
        "torch.cuda._compile_kernel": _no_kernels,
        "torch.cuda._get_pynvml_handler": _no_sensors,
        "torch.cuda._get_amdsmi_handler": _no_sensors,
        "torch.cuda.list_gpu_processes": _no_processes,
        "torch.cuda.memory.list_gpu_processes": _no_processes,
        "torch.cuda.GreenContext.create": staticmethod(_no_contexts),
        **{f"torch._C._gds_{name}": _no_files for name in _GDS},
        "torch._C._cuda_tunableop_is_enabled": lambda: False,
        "torch._C._cuda_tunableop_tuning_is_enabled": lambda: False,
        "torch._C._cuda_record_untuned_is_enabled": lambda: False,
        **{f"torch._C._cuda_{name}": _no_tuning for name in _TUNING},
    }


_GDS = ("register_buffer", "deregister_buffer", "register_handle", "deregister_handle", "load_storage", "save_storage")
_TUNING = (
    "record_untuned_enable",
    "tunableop_enable",
    "tunableop_get_filename",
    "tunableop_get_max_tuning_duration",
    "tunableop_get_max_tuning_iterations",
    "tunableop_get_results",
    "tunableop_get_rotating_buffer_size",
    "tunableop_get_validators",
    "tunableop_read_file",
    "tunableop_set_filename",
    "tunableop_set_max_tuning_duration",
    "tunableop_set_max_tuning_iterations",
    "tunableop_set_numerical_check_tolerances",
    "tunableop_set_rotating_buffer_size",
    "tunableop_tuning_enable",
)
