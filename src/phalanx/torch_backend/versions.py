"""Everything that depends on torch's version."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch

from phalanx.errors import UsageError
from phalanx.torch_backend.untyped import Store, dist, native

_VERSION = tuple(int(part) for part in torch.__version__.split(".")[:2])

# In torch 2.11 the profiler loses an event that ends on another thread than it began on.
EVENTS_MAY_END_ELSEWHERE = _VERSION >= (2, 13)


# What torch 2.11 and 2.12 call some methods of a group.
OLD_NAMES = {
    "all_gather_single": "_allgather_base",
    "reduce_scatter_single": "_reduce_scatter_base",
    "all_to_all_single": "alltoall_base",
    "all_gather_single_coalesced": "allgather_into_tensor_coalesced",
    "reduce_scatter_single_coalesced": "reduce_scatter_tensor_coalesced",
}


def make_torch_backend(name: str, store: Store, rank: int, size: int, timeout: timedelta) -> tuple[Any, Any]:
    """Make one of torch's own backends and return it with its type.

    Raises:
        UsageError: This torch has not got it.
    """
    types = dist.ProcessGroup.BackendType
    if name == "gloo" and dist.is_gloo_available():
        return native.ProcessGroupGloo(store, rank, size, timeout), types.GLOO
    if name == "nccl" and dist.is_nccl_available():
        options = native.ProcessGroupNCCL.Options()
        options._timeout = timeout
        return native.ProcessGroupNCCL(store, rank, size, options), types.NCCL
    raise UsageError(f"the backend {name!r} can't stand beside phalanx: this torch has not got it; give gloo or nccl")
