from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.virtual_gpus.in_child import on_virtual_devices


@on_virtual_devices(2, face="cuda")
def test_settings_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    backends = torch.backends
    frozen: Any = backends.flags_frozen  # by whoever has imported torch's own tests before
    monkeypatch.setitem(frozen.__globals__, "__allow_nonbracketed_mutation_flag", True)
    backends.cuda.matmul.allow_tf32 = backends.cudnn.allow_tf32 = backends.cudnn.benchmark = True
    backends.cudnn.deterministic = True
    torch.set_float32_matmul_precision("high")
    assert backends.cuda.matmul.allow_tf32
    assert backends.cudnn.benchmark
    backends.cuda.cufft_plan_cache[1].max_size = 10
    assert (backends.cuda.cufft_plan_cache[1].max_size, backends.cuda.cufft_plan_cache[0].size) == (10, 0)
    backends.cuda.cufft_plan_cache.clear()


@on_virtual_devices(1, face="cuda")
def test_there_is_no_cudnn() -> None:
    assert not torch.backends.cudnn.is_available()
    assert torch.backends.cudnn.version() is None
    with torch.backends.cudnn.flags(enabled=False):
        assert not torch.backends.cudnn.enabled


@on_virtual_devices(1, face="cuda")
def test_handles_of_libraries_are_nothing() -> None:
    assert (torch.cuda.current_blas_handle(), torch.cuda.current_solver_handle()) == (0, 0)


@on_virtual_devices(1, face="cuda")
def test_sync_debug_mode_says_that_it_finds_nothing() -> None:
    with pytest.warns(UserWarning, match="this is a virtual GPU"):
        torch.cuda.set_sync_debug_mode("warn")
    assert torch.cuda.get_sync_debug_mode() == 1
    torch.cuda.set_sync_debug_mode("default")
    assert torch.cuda.get_sync_debug_mode() == 0


@on_virtual_devices(1, face="cuda")
def test_attention_runs_with_every_backend_setting() -> None:
    query = torch.randn(2, 2, 8, 16, device="cuda", requires_grad=True)
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        torch.nn.functional.scaled_dot_product_attention(query, query, query, is_causal=True).sum().backward()
    assert query.grad is not None
    assert isinstance(torch.backends.cuda.flash_sdp_enabled(), bool)
    assert not torch.backends.cuda.is_flash_attention_available()


@on_virtual_devices(1, face="cuda")
def test_autocast_and_the_scaler_are_on() -> None:
    ones = torch.ones(2, 2, device="cuda")
    with torch.autocast("cuda", dtype=torch.float16):
        assert (ones @ ones).dtype == torch.float16
    assert torch.amp.GradScaler("cuda").is_enabled()
