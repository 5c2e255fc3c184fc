"""Move tensors between several devices of one process: torch.cuda.comm for any device type, real or virtual."""

from phalanx.devices.comm.autograd import broadcast_with_gradients, sums_with_gradients
from phalanx.devices.comm.broadcasting import broadcast, broadcast_coalesced
from phalanx.devices.comm.gathering import gather
from phalanx.devices.comm.reducing import reduce_add, reduce_add_coalesced
from phalanx.devices.comm.scattering import scatter
from phalanx.devices.comm.structures import gather_structures, scatter_arguments, scatter_structure

__all__ = [
    "broadcast",
    "broadcast_coalesced",
    "broadcast_with_gradients",
    "gather",
    "gather_structures",
    "reduce_add",
    "reduce_add_coalesced",
    "scatter",
    "scatter_arguments",
    "scatter_structure",
    "sums_with_gradients",
]
