"""What the ranks of the self-tests do. Every function runs on a rank and imports torch there."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

OPERATION_S = 15.0
GPU_OPERATION_S = 40.0
_NUMBERS = 300_000  # several chunks of a segment


def sum_over_group() -> float:
    """Add up the ranks, counted from 1, over the group."""
    import torch

    from phalanx.groups.connect import connect

    group: Any = connect(timeout_s=OPERATION_S)
    tensor = torch.full((_NUMBERS,), group.rank + 1.0)
    group.all_reduce(tensor)
    return _the_one_value(tensor)


def sum_over_torch(backend: str, num_ranks: int) -> float:
    """Do the same over one of torch's backends. The ranks meet in the launcher's store: no port is opened for it."""
    import torch

    from phalanx.settings import private_store
    from phalanx.torch_backend.private_store import open_private_store
    from phalanx.torch_backend.untyped import dist

    rank = _rank()
    timeout = timedelta(seconds=GPU_OPERATION_S if backend == "nccl" else OPERATION_S)
    place = private_store()
    assert place is not None, "spawn gives its ranks a store"
    store = open_private_store(place, rank, num_ranks, timeout)
    device = torch.device("cpu")
    if backend == "nccl":
        device = torch.device("cuda", rank % torch.cuda.device_count())
        torch.cuda.set_device(device)
    dist.init_process_group(backend, store=store, rank=rank, world_size=num_ranks, timeout=timeout)
    tensor = torch.full((_NUMBERS,), rank + 1.0, device=device)
    dist.all_reduce(tensor)
    value = _the_one_value(tensor)
    dist.destroy_process_group()
    return value


def lose_a_rank() -> float:
    """Let rank 1 be killed while rank 0 waits for it; return how long it took rank 0 to notice."""
    from phalanx.errors import PeerDiedError
    from phalanx.groups.connect import connect

    group: Any = connect(timeout_s=OPERATION_S)
    killed_at: float = group.broadcast_object(time.monotonic(), 1)
    if group.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        group.barrier()
    except PeerDiedError:
        return time.monotonic() - killed_at
    raise AssertionError("the barrier ended although a rank was dead")


def look_at_a_rank() -> str:
    """Let rank 0 look at rank 1 in /proc: its state, what it has open, and the group's memory; return what it can't."""
    from phalanx.groups.connect import connect

    group: Any = connect(timeout_s=OPERATION_S)
    peer = Path("/proc") / str(group.all_gather_object(os.getpid())[1])
    looks: dict[str, Callable[[], object]] = {
        "stat": (peer / "stat").read_text,
        "fd": lambda: [os.readlink(link) for link in (peer / "fd").iterdir()],
        "maps": lambda: (peer / "maps").read_text().index("memfd:phalanx"),
    }
    errors = {name: _error_of(look) for name, look in looks.items()} if group.rank == 0 else {}
    group.barrier()
    return ", ".join(f"{name} ({error})" for name, error in errors.items() if error)


def gpus() -> tuple[int, tuple[int, ...]]:
    """Return how many GPUs there are, and NCCL's version."""
    import torch
    import torch.distributed as dist

    if not torch.cuda.is_available() or not dist.is_nccl_available():
        return 0, ()
    return torch.cuda.device_count(), tuple(torch.cuda.nccl.version())


def _error_of(look: Callable[[], object]) -> str:
    try:
        look()
    except (OSError, ValueError) as error:
        return str(error)
    return ""


def _the_one_value(tensor: Any) -> float:
    value = float(tensor[0])
    if not bool((tensor == value).all()):
        raise AssertionError("all_reduce gave different numbers where all must be the same")
    return value


def _rank() -> int:
    from phalanx.launch.context import current_context

    context = current_context()
    assert context is not None, "only ranks call this"
    return context.rank
