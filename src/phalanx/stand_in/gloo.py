"""The stand-in for Gloo, for tensors on the CPU and on GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor

from phalanx.collectives import LocalGroup, ReduceOp
from phalanx.errors import PhalanxError, UsageError
from phalanx.stand_in.group import DEFAULT_TIMEOUT, StandInGroup, join_ranks
from phalanx.torch_backend.call_options import CallOptions
from phalanx.torch_backend.process_group import PhalanxProcessGroup
from phalanx.torch_backend.rules import BITWISE, REDUCTIONS
from phalanx.torch_backend.untyped import BackendOptions, Store, dist, native

RealGloo = getattr(native, "ProcessGroupGloo", None)


class GlooRules:
    """The calls that Gloo refuses although phalanx could serve them."""

    def check(self, event: str, shown: Sequence[Tensor], result: Sequence[Any], options: CallOptions) -> None:
        """Refuse reductions that Gloo does not support.

        Raises:
            UsageError: Gloo does not support the reduction.
        """
        if event not in REDUCTIONS:
            return
        if options.op is ReduceOp.AVG:
            raise UsageError("Cannot use ReduceOp.AVG with Gloo")
        if options.op in BITWISE and any(t.is_floating_point() or t.is_complex() for t in shown):
            raise UsageError(f"Cannot use ReduceOp.{BITWISE[options.op]} with non-integral dtype")

    def translate(self, error: PhalanxError) -> PhalanxError:
        """Return the error unchanged: Gloo raises RuntimeError, and every PhalanxError is one."""
        return error


class GlooStandIn(StandInGroup):
    """The class that replaces `ProcessGroupGloo` while the stand-in is installed."""

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
        self._log_stand_in()

    def _begin(self, group: LocalGroup, store: Store, name: str) -> None:
        super().__init__(group, store, name=name)
        self._keep_to(GlooRules())
        if RealGloo is not None:
            # The DDP logger looks for a Gloo object in C++ when it reads that name. Nothing goes through this one.
            self._decoy = RealGloo(dist.HashStore(), 0, 1, timedelta(seconds=group.timeout_s))
            self._register_backend(torch.device("cpu"), dist.ProcessGroup.BackendType.GLOO, self._decoy)

    def _of_the_same_kind(self, group: LocalGroup, store: Store, name: str) -> PhalanxProcessGroup:
        derived = GlooStandIn.__new__(GlooStandIn)
        derived._begin(group, store, name)
        return derived
