"""Replace functions of torch.distributed that depend on the backend's name or type.

For our groups, each replacement does what torch documents; for all others, it calls torch's function.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import torch

from phalanx.groups import stream_order
from phalanx.patches import Patches
from phalanx.torch_backend import NAME, versions
from phalanx.torch_backend.future import pending_futures
from phalanx.torch_backend.process_group import PhalanxProcessGroup
from phalanx.torch_backend.untyped import c10d, dist, library

_lock = threading.Lock()  # guards _patches and _served
_patches = Patches("the first group of phalanx is made")
_dynamo_patches = Patches("a group has been made, and torch.compile is loaded")
_RULES = "torch._dynamo.trace_rules"
_served: set[str] = set()  # dispatch keys
_KEYS = {"cpu": "CPU", "cuda": "CUDA", "virtual": "PrivateUse1"}
_C10D = "torch.distributed.distributed_c10d"


def teach_torch() -> None:
    """Replace the functions, once per process, and serve the devices that were registered since the last call."""
    with _lock:
        skip_own_code()
        if not _patches:
            _served.clear()
            _patches.make(_replace_functions)
        for key in (_KEYS[kind] for kind in ("cpu", *stream_order.device_types())):
            if key not in _served:
                _served.add(key)
                _serve_functional_operations(key)


def skip_own_code() -> None:
    """Keep torch.compile out of our code: it would trace into methods that end in the native engine.

    Dynamo's module of rules takes over a second to import. So the rule is added when somebody imports it.
    """
    if not _dynamo_patches:
        _dynamo_patches.after_import(_RULES, _add_dynamo_rule)


def _add_dynamo_rule() -> None:
    rules: Any = sys.modules[_RULES]
    why = "torch.compile does not trace into phalanx"
    num_folders = len(rules.SKIP_DIRS)
    rules.add("phalanx")
    added = rules.SKIP_DIRS[num_folders:]

    def remove() -> None:
        for folder in added:
            if folder in rules.SKIP_DIRS:
                rules.SKIP_DIRS.remove(folder)
        rules._recompile_re()

    _dynamo_patches.note(f"{_RULES}.SKIP_DIRS", remove, why)
    _dynamo_patches.note(f"{_RULES}.SKIP_DIRS_RE", lambda: None, why)


def _replace_functions() -> None:
    _teach("monitored_barrier", _monitored_barrier, "torch has it for Gloo alone")
    _teach("_set_pg_timeout", _set_pg_timeout, "torch asks for a C++ backend, to set its timeout")
    _teach("_get_split_source", _get_split_source, "new_group would hand a group of phalanx to NCCL, to be split")
    _teach("_coalescing_manager", _coalescing_manager, "callbacks of a future run before a coalescing block begins")
    _teach(versions.FLIGHT_RECORDER, _maybe_attach_flight_recorder, "torch's flight recorder looks for a C++ backend")
    _patches.wrap(
        ["torch._C._distributed_c10d.Reducer._set_forward_pass_work_handle"],
        _keeping_works,
        "DDP's join() hands the reducer a Work that nobody else keeps, and its Python half would be gone",
        until="torch wraps this Work in a PyWorkHolder, as it does in ProcessGroup's methods",
    )


def _teach(name: str, serve: Callable[..., Any], why: str) -> None:
    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def function(*args: Any, **kwargs: Any) -> Any:
            return serve(original, *args, **kwargs)

        return function

    _patches.wrap([f"{_C10D}.{name}", f"torch.distributed.{name}"], wrap, why)


def _keeping_works(set_handle: Callable[..., None]) -> Callable[..., None]:
    works: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()

    def set_forward_pass_work_handle(reducer: Any, work: Any, *options: Any, **named: Any) -> None:
        works[reducer] = work
        set_handle(reducer, work, *options, **named)

    return set_forward_pass_work_handle


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
    """Return the group that new_group(backend="nccl") lets NCCL split; None for our own groups: NCCL can't."""
    source = original(group)
    is_ours = isinstance(source, PhalanxProcessGroup)
    return None if is_ours and not hasattr(source, "perform_nocolor_split") else source


@contextlib.contextmanager
def _coalescing_manager(original: Callable[..., Any], group: Any = None, *args: Any, **kwargs: Any) -> Iterator[Any]:
    """Wait for callbacks first: torch counts calls of any thread as a part of the block.

    torch does not end a block that raises, nor one whose end raises. So its tensors stay in memory, and no later block
    can begin.
    """
    pending_futures.await_own()
    own = _own(group)
    try:
        with original(group, *args, **kwargs) as manager:
            yield manager
    except BaseException:
        if own is not None:
            c10d._world.pg_coalesce_state.pop(own, None)
            own.abandon_coalescing()
        raise


def _maybe_attach_flight_recorder(original: Callable[..., Any], group: Any, *args: Any) -> None:
    """Leave out our groups: torch's recorder needs a C++ backend, and our groups keep their own record."""
    if not isinstance(group, PhalanxProcessGroup):
        original(group, *args)


def _serve_functional_operations(key: str) -> None:
    """Serve the functional operations whose C++ calls methods that Python can't override."""
    kernels = library.Library("_c10d_functional", "IMPL")
    for name, function in (
        ("all_gather_into_tensor_out", _all_gather_into_tensor_out),
        ("batch_p2p_ops", _batch_p2p_ops),
    ):
        if versions.has_functional_operation(name):
            kernels.impl(name, function, key)
            why = "its C++ calls a method of the group that Python can't override"
            _patches.note(f"torch.ops._c10d_functional.{name} ({key})", kernels._destroy, why)


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
    """Do what _batch_p2p_ops does for NCCL, whose messages have to start together: a single one may wait for ever."""
    device = tensors[0].device
    group._start_coalescing(device)
    for operation, peer, tag, tensor in zip(op_list, peer_list, tag_list, tensors, strict=True):
        (group.recv if operation == "irecv" else group.send)([tensor], peer, tag)
    work = group._end_coalescing(device)
    outputs = [one if kind == "irecv" else one.new_empty(0) for kind, one in zip(op_list, tensors, strict=True)]
    for output in outputs:
        torch._C._distributed_c10d._register_work(output, work)
    return outputs
