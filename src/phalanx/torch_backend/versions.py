"""Everything in torch_backend and stand_in that depends on torch's version.

phalanx.virtual_gpus has its own list of versions, in refusals.py.
"""

from __future__ import annotations

import importlib.util
import inspect
from datetime import timedelta
from types import FrameType
from typing import Any

import torch

from phalanx.errors import UsageError
from phalanx.torch_backend.untyped import Store, dist, native

_VERSION = tuple(int(part) for part in torch.__version__.split(".")[:2])

# In torch 2.11 the profiler loses an event that ends on another thread than it began on.
EVENTS_MAY_END_ELSEWHERE = _VERSION >= (2, 13)

# What "nccl" may mean from torch 2.15 on.
NEWER_NCCL_CLASSES = ("ProcessGroupNCCL2", "ProcessGroupNCCLLazy")

# torch.distributed._dist2 is experimental: a version of torch may come without it.
HAS_DIST2 = importlib.util.find_spec("torch.distributed._dist2") is not None

# From torch 2.15 on this function attaches torch's flight recorder to every group.
FLIGHT_RECORDER = "_maybe_attach_flight_recorder"


def has_functional_operation(name: str) -> bool:
    """Tell whether torch has one of its functional collectives: some came after the oldest torch that we support."""
    return hasattr(torch.ops._c10d_functional, name)


_SEND, _RECV = (inspect.unwrap(function).__code__ for function in (dist.send, dist.recv))


def is_blocking_message(frame: FrameType | None) -> bool:
    """Tell whether a frame that calls send() or recv() of a group belongs to dist.send or dist.recv.

    In torch 2.11 these call the group directly; in later versions they call isend and irecv.
    """
    for _ in range(2):
        if frame is None:
            return False
        if frame.f_code is _SEND or frame.f_code is _RECV:
            return True
        frame = frame.f_back
    return False


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
        UsageError: This torch does not have it.
    """
    types = dist.ProcessGroup.BackendType
    if name == "gloo" and dist.is_gloo_available():
        return native.ProcessGroupGloo(store, rank, size, timeout), types.GLOO
    if name == "nccl" and dist.is_nccl_available():
        options = native.ProcessGroupNCCL.Options()
        options._timeout = timeout
        return native.ProcessGroupNCCL(store, rank, size, options), types.NCCL
    raise UsageError(f"the backend {name!r} can't be used beside phalanx: this torch lacks it; give gloo or nccl")
