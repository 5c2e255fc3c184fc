"""The stand-ins in torch's object-oriented API, torch.distributed._dist2, where this torch has it."""

from __future__ import annotations

import importlib
from datetime import timedelta
from typing import Any

import torch

from phalanx.stand_in.gloo import GlooStandIn
from phalanx.stand_in.names import ReplacedNames
from phalanx.stand_in.nccl import NcclStandIn
from phalanx.stand_in.nccl_options import NcclOptions
from phalanx.torch_backend.untyped import Store


def replace_factory(names: ReplacedNames, backend: str) -> None:
    """Have `_dist2.new_group` make the stand-in, where it would make the backend."""
    try:
        dist2 = importlib.import_module("torch.distributed._dist2")
    except ImportError:
        return
    factories = {"nccl": _make_nccl, "gloo": _make_gloo}
    if backend in factories:
        names.entry(dist2._BACKENDS, backend, factories[backend])


def _make_nccl(
    store: Store, rank: int, world_size: int, timeout: timedelta, device: torch.device, **options: Any
) -> Any:
    given = NcclOptions()
    given._timeout = timeout
    for name, value in options.items():
        if not hasattr(given, name):
            raise KeyError(f"Unknown option {name}")
        setattr(given, name, value)
    group = NcclStandIn(store, rank, world_size, given)
    group.eager_connect_single_device(device)
    return group


def _make_gloo(
    store: Store, rank: int, world_size: int, timeout: timedelta, device: torch.device, **options: Any
) -> Any:
    if options:
        raise AssertionError("Gloo backend received unexpected kwargs")
    return GlooStandIn(store, rank, world_size, timeout)
