"""Several devices in one process: virtual ones, and what programs with many devices need, on virtual and real ones.

    set_up        phalanx.virtual_devices(): check, build, load, install
    request       what was asked for
    refusals      why a process can't have them
    building      the library, built with the user's compiler and kept
    library       the library as Python calls it; its sources are in native
    own_face      devices of type "virtual"
    cuda_face     devices of type "cuda"
    stream_order  how collectives fit between a device's other work
    comm          tensors copied, split, joined and added across devices

The public names are imported when they are first used: importing the package needs no torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from phalanx.devices.checkpoints import remap_devices
    from phalanx.devices.comm import (
        broadcast,
        broadcast_coalesced,
        gather,
        gather_structures,
        reduce_add,
        reduce_add_coalesced,
        scatter,
        scatter_arguments,
        scatter_structure,
    )
    from phalanx.devices.leaks import no_leaks
    from phalanx.devices.random_state import fork_rng, get_rng_state_all, set_rng_state_all
    from phalanx.devices.set_up import Setup, active

_HOMES = {
    "phalanx.devices.checkpoints": ("remap_devices",),
    "phalanx.devices.comm": (
        "broadcast",
        "broadcast_coalesced",
        "gather",
        "gather_structures",
        "reduce_add",
        "reduce_add_coalesced",
        "scatter",
        "scatter_arguments",
        "scatter_structure",
    ),
    "phalanx.devices.leaks": ("no_leaks",),
    "phalanx.devices.random_state": ("fork_rng", "get_rng_state_all", "set_rng_state_all"),
    "phalanx.devices.set_up": ("Setup", "active"),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "Setup",
    "active",
    "broadcast",
    "broadcast_coalesced",
    "fork_rng",
    "gather",
    "gather_structures",
    "get_rng_state_all",
    "no_leaks",
    "reduce_add",
    "reduce_add_coalesced",
    "remap_devices",
    "scatter",
    "scatter_arguments",
    "scatter_structure",
    "set_rng_state_all",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'phalanx.devices' has no attribute '{name}'")
    value = globals()[name] = getattr(importlib.import_module(_HOME_OF[name]), name)  # found at once from now on
    return value
