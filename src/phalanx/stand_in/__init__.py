"""Serve programs that ask torch.distributed for NCCL, Gloo or MPI.

phalanx does this only if the user asks for it, can undo it, and logs that it does.
"""

from phalanx.stand_in.group import is_stand_in
from phalanx.stand_in.install import StandIn, stand_in_for

__all__ = ["StandIn", "is_stand_in", "stand_in_for"]
