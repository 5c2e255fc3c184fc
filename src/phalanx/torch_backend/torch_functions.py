"""Functions of torch.distributed that look at the backend's name or type, taught about ours.

Each one does for our groups what it says it does, and for all others what it did before.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch

from phalanx.groups import stream_order
from phalanx.torch_backend.autoload import NAME
from phalanx.torch_backend.pending_futures import pending_futures
from phalanx.torch_backend.process_group import PhalanxProcessGroup
from phalanx.torch_backend.untyped import c10d, dist, library

_lock = threading.Lock()  # guards _libraries
_libraries: dict[str, Any] = {}  # by dispatch key; the kernels live as long as they are here
_KEYS = {"cpu": "CPU", "cuda": "CUDA", "virtual": "PrivateUse1"}


def teach_torch() -> None:
    """Replace the functions, once for this process, and serve the devices that have come since."""
    with _lock:
        if not _libraries:
            _teach("monitored_barrier", _monitored_barrier)
            _teach("_set_pg_timeout", _set_pg_timeout)
            _teach("_get_split_source", _get_split_source)
            _teach("_coalescing_manager", _coalescing_manager)
            if hasattr(c10d, "_maybe_attach_flight_recorder"):  # torch 2.15
                _teach("_maybe_attach_flight_recorder", _maybe_attach_flight_recorder)
        for key in (_KEYS[kind] for kind in ("cpu", *stream_order.device_types())):
            if key not in _libraries:
                _libraries[key] = _teach_functional_ops(key)


def _teach(name: str, serve: Callable[..., Any]) -> None:
    original = getattr(c10d, name)

    @functools.wraps(original)
    def function(*args: Any, **kwargs: Any) -> Any:
        return serve(original, *args, **kwargs)

    for module in (c10d, dist):
        if hasattr(module, name):
            setattr(module, name, function)


def _own(group: Any) -> PhalanxProcessGroup | None:
    """Return the group if it is ours; the default one for None."""
    chosen = c10d._get_default_group() if group is None else group
    return chosen if isinstance(chosen, PhalanxProcessGroup) else None


def _monitored_barrier(
    original: Callable[..., Any],
    group: Any = None,
    timeout: timedelta | float | None = None,
    wait_all_ranks: bool = False,
) -> None:
    own = _own(group)
    if own is None or own.name() != NAME:  # a stand-in refuses what torch refuses
        original(group, timeout, wait_all_ranks)
        return
    limit = timeout if isinstance(timeout, timedelta) or timeout is None else timedelta(seconds=timeout)
    own.monitored_barrier(limit, wait_all_ranks=wait_all_ranks)


def _set_pg_timeout(original: Callable[..., Any], timeout: timedelta, group: Any = None) -> None:
    own = _own(group)
    if own is None:
        original(timeout, group)
    else:
        own.set_timeout(timeout)


def _get_split_source(original: Callable[..., Any], group: Any) -> Any:
    """What new_group(backend="nccl") hands to NCCL, to be split: there is nothing of NCCL's in our own groups."""
    source = original(group)
    is_ours = isinstance(source, PhalanxProcessGroup)
    return None if is_ours and not hasattr(source, "perform_nocolor_split") else source


def _coalescing_manager(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """torch takes what any thread calls for a part of the block, so no callback may be left to run meanwhile."""
    pending_futures.await_own()
    return original(*args, **kwargs)


def _maybe_attach_flight_recorder(original: Callable[..., Any], group: Any, *args: Any) -> None:
    """torch's recorder hooks into C++ backends; our groups have none, and keep a record of their own."""
    if not isinstance(group, PhalanxProcessGroup):
        original(group, *args)


def _teach_functional_ops(key: str) -> Any:
    """Serve the two functional operations whose C++ calls methods that Python can't override."""
    kernels = library.Library("_c10d_functional", "IMPL")
    for name, function in (
        ("all_gather_into_tensor_out", _all_gather_into_tensor_out),
        ("batch_p2p_ops", _batch_p2p_ops),
    ):
        if hasattr(torch.ops._c10d_functional, name):
            kernels.impl(name, function, key)
    return kernels


def _resolve(group: Any) -> Any:
    return group if isinstance(group, dist.ProcessGroup) else c10d._resolve_process_group(group)


def _all_gather_into_tensor_out(
    input: torch.Tensor, group_size: int, group_name: Any, *, out: torch.Tensor
) -> torch.Tensor:
    work = _resolve(group_name)._allgather_base(out, input)
    torch._C._distributed_c10d._register_work(out, work)
    return out


def _batch_p2p_ops(
    op_list: list[str], peer_list: list[int], tag_list: list[int], tensors: list[torch.Tensor], group_name: str
) -> list[torch.Tensor]:
    group = _resolve(group_name)
    if not isinstance(group, PhalanxProcessGroup) and tensors and tensors[0].is_cuda:
        return _batch_p2p_of_others(group, op_list, peer_list, tag_list, tensors)
    outputs = []
    for operation, peer, tag, tensor in zip(op_list, peer_list, tag_list, tensors, strict=True):
        result = tensor if operation == "irecv" else tensor.new_empty(0)
        work = group.recv([tensor], peer, tag) if operation == "irecv" else group.send([tensor], peer, tag)
        torch._C._distributed_c10d._register_work(result, work)
        outputs.append(result)
    return outputs


def _batch_p2p_of_others(
    group: Any, op_list: list[str], peer_list: list[int], tag_list: list[int], tensors: list[torch.Tensor]
) -> list[torch.Tensor]:
    """Do that with NCCL beside us, whose messages have to start together: one that is alone may wait for ever."""
    device = tensors[0].device
    group._start_coalescing(device)
    for operation, peer, tag, tensor in zip(op_list, peer_list, tag_list, tensors, strict=True):
        (group.recv if operation == "irecv" else group.send)([tensor], peer, tag)
    work = group._end_coalescing(device)
    outputs = [one if kind == "irecv" else one.new_empty(0) for kind, one in zip(op_list, tensors, strict=True)]
    for output in outputs:
        torch._C._distributed_c10d._register_work(output, work)
    return outputs
