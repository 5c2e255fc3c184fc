"""Make a group from what torch hands over: a store, a rank and a size.

The store is used once, to agree on a meeting place; from then on the ranks need no port and no file.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch

from phalanx.collectives import LocalGroup
from phalanx.errors import UsageError
from phalanx.groups import stream_order
from phalanx.groups.connect import join
from phalanx.groups.over_hosts import join_job
from phalanx.launch.context import current_context
from phalanx.torch_backend.cuda_order import serve_cuda
from phalanx.torch_backend.meeting_places import agree_on_place, open_board, place_of_hosts
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
    is_world = not options.global_ranks_in_group
    rank, size = options.group_rank, options.group_size
    group = join_group(store, rank, size, options.timeout, ranks=ranks, name=name, is_world=is_world)
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
    store: Store,
    rank: int,
    size: int,
    timeout: timedelta,
    *,
    ranks: Sequence[int],
    name: str,
    is_world: bool = False,
) -> LocalGroup:
    """Meet the other ranks of a store and return the engine's group.

    Raises:
        UsageError: A rank is on another host.
        OperationTimeoutError: Not every rank came.
    """
    where = place_of_hosts(store)
    if where is not None:
        serve_cuda()
        teach_torch()
        limit = timeout.total_seconds()
        return join_job(
            open_board(store, rank),
            rank,
            name=name or "default",
            timeout_s=limit,
            ranks=ranks,
            reached_from=where,
            is_world=is_world,
        )
    place = functools.partial(agree_on_place, store, rank, timeout)
    crowd = max(size, dist.get_world_size() if dist.is_initialized() else 1)
    return join_at(place, rank, ranks, timeout, name=name, crowd=crowd)


def join_at(
    place: Callable[[], str], rank: int, ranks: Sequence[int], timeout: timedelta, *, name: str, crowd: int
) -> LocalGroup:
    """Prepare torch, meet the other ranks at a place, and return the engine's group.

    Raises:
        UsageError: A rank is on another host.
        OperationTimeoutError: Not every rank came.
    """
    serve_cuda()
    teach_torch()
    context = current_context()
    return join(
        rank,
        len(ranks),
        place(),
        name=name or "default",
        timeout_s=timeout.total_seconds(),
        is_thread=context is not None and context.is_thread,
        ranks=ranks,
        crowd=crowd,
    )
