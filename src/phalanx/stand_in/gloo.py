"""phalanx in Gloo's place: CPU tensors, and those of virtual devices."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor

from phalanx.collectives import ReduceOp
from phalanx.errors import PhalanxError, UsageError
from phalanx.groups.shared_memory import SharedMemoryGroup
from phalanx.stand_in.group import DEFAULT_TIMEOUT, StandInGroup, join_ranks
from phalanx.torch_backend.call_options import CallOptions
from phalanx.torch_backend.process_group import PhalanxProcessGroup
from phalanx.torch_backend.untyped import BackendOptions, Store, dist, native

RealGloo = getattr(native, "ProcessGroupGloo", None)
_BITWISE = {ReduceOp.BAND: "BAND", ReduceOp.BOR: "BOR", ReduceOp.BXOR: "BXOR"}
_REDUCTIONS = {"all_reduce", "reduce", "reduce_scatter", "_reduce_scatter_base", "reduce_scatter_tensor_coalesced"}


class GlooRules:
    """What Gloo refuses and phalanx could do."""

    def check(self, event: str, shown: Sequence[Tensor], result: Sequence[Any], options: CallOptions) -> None:
        """Refuse reductions that Gloo has not got.

        Raises:
            UsageError: Gloo can't do it.
        """
        if event not in _REDUCTIONS:
            return
        if options.op is ReduceOp.AVG:
            raise UsageError("Cannot use ReduceOp.AVG with Gloo")
        if options.op in _BITWISE and any(t.is_floating_point() or t.is_complex() for t in shown):
            raise UsageError(f"Cannot use ReduceOp.{_BITWISE[options.op]} with non-integral dtype")

    def translate(self, error: PhalanxError) -> PhalanxError:
        """Return it as it is: Gloo raises RuntimeError, which every PhalanxError is."""
        return error


class GlooStandIn(StandInGroup):
    """What `ProcessGroupGloo` means while the stand-in is installed."""

    stands_in_for = "gloo"

    class _Options(BackendOptions):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__("gloo", DEFAULT_TIMEOUT)
            self._devices: list[Any] = []
            self._threads = 2

    def __init__(self, store: Store, rank: int, size: int, timeout: Any = DEFAULT_TIMEOUT, *_: Any) -> None:
        limit = timeout if isinstance(timeout, timedelta) else timeout._timeout
        group, name = join_ranks(store, rank, size, limit)
        self._begin(group, store, name)
        self._tell()

    def _begin(self, group: SharedMemoryGroup, store: Store, name: str) -> None:
        super().__init__(group, store, name=name)
        self._habits.rules = GlooRules()
        if RealGloo is not None:
            # The DDP logger looks for a Gloo object in C++ when it reads that name. Nothing goes through this one.
            self._decoy = RealGloo(dist.HashStore(), 0, 1, timedelta(seconds=group.timeout_s))
            self._register_backend(torch.device("cpu"), dist.ProcessGroup.BackendType.GLOO, self._decoy)

    def _of_the_same_kind(self, group: SharedMemoryGroup, store: Store, name: str) -> PhalanxProcessGroup:
        derived = GlooStandIn.__new__(GlooStandIn)
        derived._begin(group, store, name)
        return derived
