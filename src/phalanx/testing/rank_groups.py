"""The groups of a test, with the backend that the options or the marker choose."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from datetime import timedelta
from typing import Any

from phalanx.errors import UsageError
from phalanx.groups.connect import connect
from phalanx.groups.torch_network import TorchGroup
from phalanx.launch.context import LaunchContext, current_context
from phalanx.testing.plan import Plan
from phalanx.torch_backend.private_store import open_private_store
from phalanx.torch_backend.thread_worlds import thread_worlds
from phalanx.torch_backend.untyped import dist

# The groups wait longer than the test may take. So its limit ends the test, and the report says what ranks waited in.
_LONGER_S = 5.0


def open_group(plan: Plan) -> Iterator[Any]:
    """Yield the group of all ranks of a test.

    Raises:
        UsageError: torch does not have the backend.
    """
    if plan.backend == "phalanx" or is_served_by_phalanx(plan):
        group = connect()
        yield group
        group.close()
        return
    for _ in open_process_group(plan):
        yield TorchGroup(dist.group.WORLD, timeout_s=plan.timeout_s + _LONGER_S)


def open_process_group(plan: Plan) -> Iterator[Any]:
    """Yield torch's default process group of all ranks of a test.

    Raises:
        UsageError: torch does not have the backend, or there is a default group already.
    """
    context = current_context()
    assert context is not None
    with thread_worlds() if context.is_thread else nullcontext():
        yield from _open_process_group(plan, context)


def _open_process_group(plan: Plan, context: LaunchContext) -> Iterator[Any]:
    check_backend(plan.backend)
    if plan.backend != "phalanx" and not is_served_by_phalanx(plan):
        context.own["engine"] = plan.backend
    if dist.is_initialized():
        raise UsageError("fixture 'process_group': there is a default process group already")
    timeout = timedelta(seconds=plan.timeout_s + _LONGER_S)
    dist.init_process_group(
        plan.backend,
        store=open_private_store(context.store, context.rank, context.size, timeout),
        rank=context.rank,
        world_size=context.size,
        timeout=timeout,
    )
    if context.is_thread and (plan.backend == "phalanx" or is_served_by_phalanx(plan)):
        dist.group.WORLD.phalanx_group.watch(connect())  # if the world breaks, ranks that wait in this group are freed
    try:
        yield dist.group.WORLD
    finally:
        if dist.is_initialized() and context.failure is None:
            dist.destroy_process_group()


def is_served_by_phalanx(plan: Plan) -> bool:
    """Tell whether the backend is phalanx under NCCL's name, with all that its groups have."""
    return plan.gpus is not None and plan.backend == "nccl"


def check_backend(backend: str) -> None:
    """Check that torch has a backend.

    Raises:
        UsageError: It does not; the text says why.
    """
    available = {
        "gloo": dist.is_gloo_available,
        "nccl": dist.is_nccl_available,
        "mpi": dist.is_mpi_available,
    }
    if backend in available and not available[backend]():
        raise UsageError(
            f"this build of torch has no {backend} backend; choose another with --ranks-backend or backend=..., "
            f"or install a torch that has it"
        )
