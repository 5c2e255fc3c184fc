"""GroupCreation a group's engine from what torch hands over: a store, a rank and a size.

The store is used once, to agree on a meeting place; from then on the ranks need no port and no file.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch

from phalanx.errors import OperationTimeoutError, UsageError
from phalanx.groups import stream_order
from phalanx.groups.connect import join
from phalanx.groups.shared_memory import SharedMemoryGroup
from phalanx.launch.context import current_context
from phalanx.torch_backend.cuda_order import serve_cuda
from phalanx.torch_backend.dynamo import skip_own_code
from phalanx.torch_backend.process_group import PhalanxProcessGroup
from phalanx.torch_backend.torch_functions import teach_torch
from phalanx.torch_backend.untyped import Store, dist


def create(options: Any, backend_options: Any) -> PhalanxProcessGroup:
    """Serve init_process_group and new_group.

    Args:
        options: torch's DistributedBackendOptions.
        backend_options: The caller's `pg_options`.

    Raises:
        UsageError: There are backend options, or a rank is on another host.
        OperationTimeoutError: Not every rank came.
    """
    if backend_options is not None:
        raise UsageError(f"phalanx has no pg_options; got {type(backend_options).__name__}. Leave pg_options out")
    ranks = list(options.global_ranks_in_group) or list(range(options.group_size))
    store, name = options.store, options.group_id
    group = join_group(store, options.group_rank, options.group_size, options.timeout, ranks=ranks, name=name)
    return PhalanxProcessGroup(group, store, name=name)


def create_for_dist2(
    store: Store, rank: int, world_size: int, timeout: timedelta, device: torch.device | str, **options: Any
) -> PhalanxProcessGroup:
    """Serve torch.distributed._dist2.new_group.

    Raises:
        UsageError: There are options, or the device is neither the CPU nor a GPU, real or virtual.
        OperationTimeoutError: Not every rank came.
    """
    if options:
        raise UsageError(f"phalanx: unexpected options {sorted(options)}; it has none")
    serve_cuda()
    served = ["cpu", *stream_order.device_types()]
    if torch.device(device).type not in served:
        raise UsageError(
            f"phalanx: a group for device {device} is not possible; give device={' or '.join(map(repr, served))}"
        )
    group = join_group(store, rank, world_size, timeout, ranks=range(world_size), name="")
    return PhalanxProcessGroup(group, store, name="")


def join_group(
    store: Store, rank: int, size: int, timeout: timedelta, *, ranks: Sequence[int], name: str
) -> SharedMemoryGroup:
    """Meet the other ranks and return the engine's group.

    Raises:
        UsageError: A rank is on another host.
        OperationTimeoutError: Not every rank came.
    """
    serve_cuda()
    teach_torch()
    skip_own_code()
    context = current_context()
    return join(
        rank,
        size,
        agree_on_place(store, rank, timeout),
        name=name or "default",
        timeout_s=timeout.total_seconds(),
        is_thread=context is not None and context.is_thread,
        ranks=ranks,
        crowd=max(size, dist.get_world_size() if dist.is_initialized() else 1),
    )


def agree_on_place(store: Store, rank: int, timeout: timedelta) -> str:
    """Return a name that all ranks which share this store, and nobody else, get.

    Raises:
        UsageError: Rank 0 is on another host.
        OperationTimeoutError: Rank 0 did not come.
    """
    # A store may outlive a group, and serve another one: every rank counts how often it was here.
    number = store.add(f"phalanx/rank/{rank}", 1)
    return _share_place(store, f"phalanx/place/{number}", rank == 0, timeout)


def agree_on_merge_place(store: Store, size: int, timeout: timedelta) -> str:
    """Do the same for `size` ranks of several groups, which have no common numbers.

    Raises:
        UsageError: Somebody is on another host.
        OperationTimeoutError: Nobody came to say where.
    """
    number, position = divmod(store.add("phalanx/merge", 1) - 1, size)
    return _share_place(store, f"phalanx/merge/{number}", position == 0, timeout)


def _share_place(store: Store, key: str, is_first: bool, timeout: timedelta) -> str:
    if is_first:
        store.set(key, f"{_host()}|{secrets.token_hex(16)}")
    try:
        store.wait([key], timeout)
    except RuntimeError as error:
        raise OperationTimeoutError(
            f"rank 0 did not come to make the group within {timeout.total_seconds():.3g} s\n"
            f"  do       make sure every rank makes this call, or give a longer timeout"
        ) from error
    host, _, place = store.get(key).decode().partition("|")
    if host != _host():
        raise UsageError(
            f"this rank is not on rank 0's host, or in another container\n"
            f"  here     {_host()}\n  rank 0   {host}\n"
            f"  do       use backend 'gloo' or 'nccl' for ranks on several hosts"
        )
    return str(place)


def _host() -> str:
    """What ranks must have in common to reach each other: the running system and its network namespace."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot}:{os.stat('/proc/self/ns/net').st_ino}"
