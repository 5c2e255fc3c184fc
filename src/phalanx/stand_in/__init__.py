"""phalanx under the name of another backend: programs that ask for NCCL, Gloo or MPI run on the shared-memory engine.

Only when asked for, reversible, and never in secret.
"""

from phalanx.stand_in.group import is_stand_in
from phalanx.stand_in.install import StandIn, stand_in_for

__all__ = ["StandIn", "is_stand_in", "stand_in_for"]
