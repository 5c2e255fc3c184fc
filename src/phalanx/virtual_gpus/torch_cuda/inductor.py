"""torch.compile with its default backend: Inductor writes C++ for the CPU where it would write Triton for the device.

A virtual GPU uses host memory, so such code works on its tensors without changes. Inductor treats device "cuda" as the
CPU when it generates code; buffers, other operations and random numbers stay on the device. The race detector does not
see which memory such code accesses.

Import torch._inductor only inside these functions, which run after the program has imported it: that takes seconds.
"""

from __future__ import annotations

from typing import Any

import torch

from phalanx.patches import Names
from phalanx.virtual_gpus.torch_cuda import flex_attention
from phalanx.virtual_gpus.torch_cuda.refusals import refusal

MODULE = "torch._inductor.compile_fx"
"""When this module has been imported, the others that are changed have been imported too."""

_no_cpp_wrapper = refusal(
    "torch.compile with cpp_wrapper, and AOTInductor",
    "the wrapper would be linked to CUDA's libraries",
    "leave cpp_wrapper out, or compile for the CPU",
)


class _NoCppWrapper:
    create = staticmethod(_no_cpp_wrapper)


def names() -> Names:
    """Return the functions that make Inductor write C++ for device "cuda", and register the backend."""
    from torch._inductor import compile_fx, scheduler
    from torch._inductor.codegen import common, wrapper
    from torch._inductor.codegen.cpp import CppScheduling

    common.init_backend_registration()
    common.register_backend_for_device("cuda", CppScheduling, wrapper.PythonWrapperCodegen, _NoCppWrapper)  # type: ignore[arg-type]
    return {
        "torch._inductor.config.cuda_backend": "cpp",
        "torch._inductor.config.loop_ordering_after_fusion": False,  # as for the CPU; it is for GPU kernels only
        "torch._inductor.scheduler.Scheduler.create_backend": _create_backend(scheduler.Scheduler.create_backend),
        "torch._inductor.scheduler.BaseSchedulerNode.is_cpu": _runs_on_cpu,
        "torch._inductor.codegen.wrapper.PythonWrapperCodegen._generate_kernel_call_helper": _kernel_call(
            wrapper.PythonWrapperCodegen._generate_kernel_call_helper
        ),
        "torch._inductor.cudagraph_utils.check_multiple_devices_or_any_cpu_nodes": _why_no_graphs,
        "torch._inductor.compile_fx.compile_fx": flex_attention.with_warning(compile_fx.compile_fx),
        "torch._inductor.compile_fx._warn_tf32_disabled": lambda: None,  # advice about the real GPU's tensor cores
        "torch._C._dynamo.guards._empty_strided_cuda": _empty_strided,
    }


def _create_backend(create_elsewhere: Any) -> Any:
    def create_backend(self: Any, device: torch.device) -> Any:
        """Make the backend without checking for Triton."""
        if device.type != "cuda":
            return create_elsewhere(self, device)
        from torch._inductor.codegen.common import get_scheduling_for_device
        from torch._inductor.virtualized import V

        V.graph.add_device_info(device)
        scheduling = get_scheduling_for_device(device.type)
        assert scheduling is not None
        return scheduling(self)

    return create_backend


def _runs_on_cpu(self: Any) -> bool:
    device = self.get_device()
    return device is not None and device.type in ("cpu", "cuda")


def _kernel_call(call_elsewhere: Any) -> Any:
    def call(
        self: Any, kernel_name: str, call_args: Any, *, device: Any = None, triton: bool = True, **options: Any
    ) -> None:
        """Write a call in the way of the CPU: without a stream."""
        from torch._inductor.virtualized import V

        device = device or V.graph.get_current_device_or_throw()
        if triton or device.type != "cuda":
            call_elsewhere(self, kernel_name, call_args, device=device, triton=triton, **options)
        else:
            self.writeline(self.wrap_kernel_call(kernel_name, call_args))

    return call


def _why_no_graphs(_nodes_of_devices: object) -> str:
    return "a virtual GPU, where operations run at once"


def _empty_strided(size: Any, stride: Any, dtype: torch.dtype) -> torch.Tensor:
    return torch.empty_strided(size, stride, dtype=dtype, device="cuda")
