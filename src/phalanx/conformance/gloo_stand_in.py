"""phalanx under Gloo's name, so that tests which ask for Gloo by name run on it.

For conformance runs only: `dist.get_backend()` says "gloo" although Gloo does nothing here.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch

from phalanx.torch_backend.creation import join_group
from phalanx.torch_backend.process_group import PhalanxProcessGroup
from phalanx.torch_backend.untyped import Store, c10d, dist, native

_RealGloo = getattr(native, "ProcessGroupGloo", None)
_DEFAULT_TIMEOUT = timedelta(minutes=30)


class GlooStandIn(PhalanxProcessGroup):
    """What `ProcessGroupGloo` means while the stand-in is installed."""

    def __init__(self, store: Store, rank: int, size: int, timeout: timedelta = _DEFAULT_TIMEOUT, *_: Any) -> None:
        group = join_group(store, rank, size, timeout, ranks=range(size), name="")
        super().__init__(group, store, name="", backend_name="gloo")
        if _RealGloo is not None:
            # The DDP logger looks for a Gloo object in C++ when it reads that name. Nothing goes through this one.
            self._decoy = _RealGloo(dist.HashStore(), 0, 1, timeout)
            self._register_backend(torch.device("cpu"), dist.ProcessGroup.BackendType.GLOO, self._decoy)


def install() -> None:
    """Make `backend="gloo"` mean phalanx in this process."""
    c10d.ProcessGroupGloo = GlooStandIn
    dist.ProcessGroupGloo = GlooStandIn
