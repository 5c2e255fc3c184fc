from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from phalanx.errors import UsageError
from tests.virtual_gpus.in_child import on_virtual_devices, run_script

_KERNEL = "template <typename T> T f(T x) { return x; }"


def graphed() -> None:
    ones = torch.ones(2, 2, device="cuda")
    torch.cuda.make_graphed_callables(torch.nn.Linear(2, 2).cuda(), (ones,))


@on_virtual_devices(1, face="cuda")
def test_what_needs_a_real_gpu_says_what_to_do_instead() -> None:
    torch.cuda.init()  # torch answers some of these without looking before
    buffer: Any = torch.ones(1, device="cuda").untyped_storage()
    uses: list[tuple[Callable[[], object], str]] = [
        (torch.cuda.CUDAGraph, "call the function itself"),
        (torch.cuda.graph_pool_handle, "call the function itself"),
        (graphed, "call the function itself"),
        (torch.cuda.MemPool, "leave the pool out"),
        (torch.cuda.utilization, "leave these out"),
        (torch.cuda.temperature, "leave these out"),
        (torch.cuda.power_draw, "leave these out"),
        (torch.cuda.clock_rate, "leave these out"),
        (torch.cuda.memory_usage, "leave these out"),
        (torch.cuda.profiler.start, "torch.profiler.profile"),
        (torch.cuda.host_memory_stats, "memory_stats"),
        (torch.cuda.tunable.enable, "leave tuning out"),
        (torch.cuda.list_gpu_processes, "memory_summary"),
        (lambda: torch.cuda._compile_kernel("", "kernel"), "torch's functions"),
        (lambda: torch.cuda.GreenContext.create(num_sms=1, device_id=0), "green contexts"),
        (lambda: torch.cuda.gds.gds_register_buffer(buffer), "torch.save"),
        (lambda: torch.cuda.jiterator._create_jit_fn(_KERNEL)(torch.ones(2, device="cuda")), "torch's functions"),
    ]
    for use, instead in uses:
        with pytest.raises(UsageError, match="this is a virtual GPU: ") as raised:
            use()
        assert instead in str(raised.value)


@on_virtual_devices(1, face="cuda")
def test_questions_that_have_an_answer_get_it() -> None:
    assert not torch.cuda.is_current_stream_capturing()
    assert not torch.cuda.tunable.is_enabled()


@on_virtual_devices(1, face="cuda")
def test_markers_for_profilers_do_nothing() -> None:
    with torch.cuda.nvtx.range("step %d", 1):
        assert torch.cuda.nvtx.range_push("inner") == 1
        assert torch.cuda.nvtx.range_pop() == 1
    torch.cuda.nvtx.mark("here")
    torch.cuda.nvtx.range_end(torch.cuda.nvtx.range_start("across"))


@pytest.mark.slow
@on_virtual_devices(1, face="cuda")
def test_the_profiler_takes_cuda_activities(capfd: pytest.CaptureFixture[str]) -> None:
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profiler:
        torch.ones(3, device="cuda").add(1)
    assert "aten::add" in {event.key for event in profiler.key_averages()}
    assert "Failed to record CUDA event" not in capfd.readouterr().err


@pytest.mark.slow
def test_a_triton_kernel_says_what_to_do_instead(tmp_path: Path) -> None:
    package = tmp_path / "triton" / "runtime"
    package.mkdir(parents=True)
    (tmp_path / "triton" / "__init__.py").write_text("")
    (package / "__init__.py").write_text("")
    (package / "driver.py").write_text("def _create_driver(): ...\ndef active(): return _create_driver()\n")
    ended = run_script(
        "import phalanx; phalanx.virtual_devices(1, face='cuda')\n"
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        "import triton.runtime.driver; triton.runtime.driver.active()"
    )
    assert "a Triton kernel: this is a virtual GPU" in ended.stderr


@on_virtual_devices(1, face="cuda")
def test_gloo_says_that_it_does_not_serve_virtual_gpus(tmp_path: Path) -> None:
    for backend in ("gloo", "cpu:gloo,cuda:gloo"):
        torch.distributed.init_process_group(backend, init_method=f"file://{tmp_path / backend}", rank=0, world_size=1)
        tensor = torch.ones(1)
        torch.distributed.all_reduce(tensor)
        with pytest.raises(RuntimeError, match="No backend type associated with device type cuda"):
            torch.distributed.all_reduce(tensor.cuda())
        torch.distributed.destroy_process_group()
