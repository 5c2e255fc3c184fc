"""What programs that drive several devices from one process need, on virtual devices and on real GPUs.

comm          tensors copied, split, joined and added across devices
random_state  the random states of all devices
leaks         a check that a block gives its memory back
checkpoints   loading tensors of devices that are not here
races         streams that touch the same memory without waiting for each other (virtual devices)
"""

from phalanx.devices import races
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

__all__ = [
    "broadcast",
    "broadcast_coalesced",
    "fork_rng",
    "gather",
    "gather_structures",
    "get_rng_state_all",
    "no_leaks",
    "races",
    "reduce_add",
    "reduce_add_coalesced",
    "remap_devices",
    "scatter",
    "scatter_arguments",
    "scatter_structure",
    "set_rng_state_all",
]
