"""Groups of ranks, behind one protocol (phalanx.collectives.Group)."""

from __future__ import annotations

from phalanx.groups.connect import connect
from phalanx.groups.current import current_group
from phalanx.groups.shared_memory import SharedMemoryGroup

__all__ = ["SharedMemoryGroup", "connect", "current_group"]
