"""The stand-ins in torch's object-oriented API, torch.distributed._dist2."""

from __future__ import annotations

import importlib
from datetime import timedelta
from typing import Any

import torch

from phalanx.patches import Patches
from phalanx.stand_in.gloo import GlooStandIn
from phalanx.stand_in.nccl import NcclStandIn
from phalanx.stand_in.nccl_options import NcclOptions
from phalanx.torch_backend import versions
from phalanx.torch_backend.untyped import Store


def replace_factory(patches: Patches, backend: str) -> None:
    """Make `_dist2.new_group` create the stand-in instead of the backend."""
    factories = {"nccl": _make_nccl, "gloo": _make_gloo}
    if versions.HAS_DIST2 and backend in factories:
        try:
            importlib.import_module("torch.distributed._dist2")
        except ImportError:  # a build of torch may lack what it imports
            return
        patches.set_item("torch.distributed._dist2._BACKENDS", backend, factories[backend], "_dist2 makes the stand-in")


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
