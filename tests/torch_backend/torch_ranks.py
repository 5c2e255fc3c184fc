"""Run a function on ranks that have a default process group of torch.distributed."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

from tests.run_ranks import run_ranks


def run_torch_ranks(
    folder: Path, ranks: int, function: Callable[..., Any], *args: Any, backend: str = "phalanx", timeout_s: float = 30
) -> list[Any]:
    """Call the function on every rank, between init_process_group and destroy_process_group."""
    store = folder / "store"
    store.unlink(missing_ok=True)
    return run_ranks("process", ranks, _with_group, backend, f"file://{store}", timeout_s, function, *args)


def _with_group(backend: str, init_method: str, timeout_s: float, function: Callable[..., Any], *args: Any) -> Any:
    import torch.distributed as dist

    from phalanx.launch.context import current_context

    context = current_context()
    assert context is not None
    dist.init_process_group(
        backend,
        init_method=init_method,
        rank=context.rank,
        world_size=context.size,
        timeout=timedelta(seconds=timeout_s),
    )
    result = function(*args)
    if dist.is_initialized():
        dist.destroy_process_group()
    return result
