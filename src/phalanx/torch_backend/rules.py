"""What a group refuses beyond what the engine can't do: a stand-in keeps to the rules of what it stands in for.

Operations go by the names that the profiler has for them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from torch import Tensor

from phalanx.collectives import ReduceOp
from phalanx.errors import PhalanxError
from phalanx.torch_backend.call_options import CallOptions

MESSAGES = frozenset(("send", "recv", "recvAnySource"))
REDUCTIONS = frozenset(
    ("all_reduce", "reduce", "reduce_scatter", "_reduce_scatter_base", "reduce_scatter_tensor_coalesced")
)
BITWISE = {ReduceOp.BAND: "BAND", ReduceOp.BOR: "BOR", ReduceOp.BXOR: "BXOR"}


class Rules(Protocol):
    """Looks at every operation before anything is sent."""

    def check(self, event: str, shown: Sequence[Tensor], result: Sequence[Any], options: CallOptions) -> None:
        """Raise what the other backend would raise.

        Args:
            event: The operation, as the profiler names it.
            shown: The tensors it reads; for one that works in place, those it works on.
            result: The tensors it fills, or lists of them.
            options: The reduction, the root, the timeout.
        """

    def translate(self, error: PhalanxError) -> PhalanxError:
        """Return the error as one that the other backend's users catch as well."""
