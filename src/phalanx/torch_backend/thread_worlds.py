"""torch.distributed for ranks that are threads: each has its own default process group and its own names.

torch keeps one world per process. While this is installed, a thread that is a rank sees a world of its own; all other
threads see the one there was before.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from phalanx.collectives import LocalGroup
from phalanx.groups.connect import connect_locally
from phalanx.launch.context import current_context
from phalanx.patches import Patches
from phalanx.torch_backend.autoload import register_backend
from phalanx.torch_backend.creation import join_group
from phalanx.torch_backend.process_group import PhalanxProcessGroup
from phalanx.torch_backend.untyped import c10d, dist, native

THREADED = "threaded"  # what torch's own tests call a backend for threads
_KEY = THREADED.upper()


class _RankWorld(threading.local):
    """The attributes of torch's `_World` that each rank has for itself, under torch's names."""

    def __init__(self) -> None:
        self.default_pg: Any = None
        self.pg_map: dict[Any, Any] = {}
        self.pg_names: dict[Any, str] = {}
        self.pg_group_ranks: dict[Any, dict[int, int]] = {}
        self.pg_backend_config: dict[Any, str] = {}
        self.group_count = 0
        self.tags_to_pg: dict[str, list[Any]] = {}
        self.pg_to_tag: dict[Any, str] = {}
        self.pg_coalesce_state: dict[Any, list[Any]] = {}
        self.comms: list[Any] = []
        self.launched: LocalGroup | None = None


class ThreadWorlds:
    """Takes the place of `distributed_c10d._world`."""

    def __init__(self, before: Any) -> None:
        object.__setattr__(self, "_before", before)
        object.__setattr__(self, "_own", _RankWorld())

    def _current(self) -> Any:
        return self._own if _is_rank() else self._before

    def __getattr__(self, name: str) -> Any:
        if name == "pg_config_info" and _is_rank():
            return type(self._before).pg_config_info.fget(self)
        return getattr(self._current(), name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._current(), name, value)


def _is_rank() -> bool:
    context = current_context()
    return context is not None and context.is_thread


_patches = Patches("ranks that are threads use torch.distributed", undo="the end of thread_worlds()")


@contextmanager
def thread_worlds() -> Iterator[None]:
    """Give every rank that is a thread its own world of torch.distributed inside the block.

    The backend "threaded" is then phalanx. All other backends are the usual ones.
    """
    _patches.enter(_install)
    try:
        yield
    finally:
        _patches.leave()


def _install() -> None:
    why = "each rank that is a thread has a default process group of its own"
    _patches.replace("torch.distributed.distributed_c10d._world", ThreadWorlds(c10d._world), why)
    why = 'the backend "threaded" is phalanx'
    if _KEY in dist.Backend._plugins:
        plugin = dist.Backend._BackendPlugin(_create_threaded, True)
        _patches.set_item("torch.distributed.Backend._plugins", _KEY, plugin, why)
    else:
        register_backend(THREADED, _create_threaded, ["cpu"], _patches.when, why)
    hook = sys.excepthook
    why = "init_process_group on each rank puts a hook on top of it"
    _patches.note("sys.excepthook", lambda: _put_hook_back(hook), why)
    native._set_thread_isolation_mode(True)
    name = "torch._C._distributed_c10d._set_thread_isolation_mode"
    _patches.note(name, lambda: native._set_thread_isolation_mode(False), "C++ keeps groups by name, per thread")


def _put_hook_back(before: Any) -> None:
    """Remove torch's hooks; keep a hook that the program has put on top of them."""
    if getattr(sys.excepthook, "__module__", "") == c10d.__name__:
        sys.excepthook = before


def use_own_autograd_thread() -> Any:
    """Keep the calling rank's backward passes on its own thread, which has its world; exit the result to undo this."""
    return torch.autograd.set_multithreading_enabled(False)


def _create_threaded(options: Any, _: Any) -> PhalanxProcessGroup:
    ranks = list(options.global_ranks_in_group) or list(range(options.group_size))
    store, name = options.store, options.group_id
    group = join_group(store, options.group_rank, options.group_size, options.timeout, ranks=ranks, name=name)
    group.watch(_launched_group())
    return PhalanxProcessGroup(group, store, name=name, backend_name=THREADED)


def _launched_group() -> LocalGroup:
    """Return the group that the launcher breaks when the time is up, so that ranks in other groups raise too."""
    own: _RankWorld = c10d._world._own
    if own.launched is None or own.launched.is_closed:
        own.launched = connect_locally()
    return own.launched
