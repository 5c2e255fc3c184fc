"""torch.cuda.nvtx: markers for NVIDIA's profilers, which nobody reads here. Only the depth of ranges is kept."""

from __future__ import annotations

import itertools
import threading

from phalanx.patches import Names


class VirtualMarkers:
    """Replaces NVTX. Threads may share it; each has its own ranges."""

    def __init__(self) -> None:
        self._local = threading.local()
        self._handles = itertools.count(1)

    def rangePushA(self, message: str) -> int:
        """Open a range and return how many were open before."""
        depth: int = getattr(self._local, "depth", 0)
        self._local.depth = depth + 1
        return depth

    def rangePop(self) -> int:
        """Close the innermost range and return how many are left; -1 when none was open."""
        depth: int = getattr(self._local, "depth", 0) - 1
        self._local.depth = max(depth, 0)
        return depth

    def rangeStartA(self, message: str) -> int:
        """Return a handle for rangeEnd."""
        return next(self._handles)

    def rangeEnd(self, handle: int) -> None:
        """Do nothing."""

    def markA(self, message: str) -> None:
        """Do nothing."""

    def deviceRangeStart(self, message: str, stream: int) -> int:
        """Return a handle for deviceRangeEnd."""
        return next(self._handles)

    def deviceRangeEnd(self, handle: object, stream: int) -> None:
        """Do nothing."""


def names() -> Names:
    """Return the markers, under both names torch has for them."""
    markers = VirtualMarkers()
    return {"torch._C._nvtx": markers, "torch.cuda.nvtx._nvtx": markers}
