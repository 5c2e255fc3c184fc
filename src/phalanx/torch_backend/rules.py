"""The rules of another backend: calls that a stand-in refuses although the engine could run them.

Operations have the names that the profiler uses.
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
    """Checks every operation before anything is sent."""

    def check(self, event: str, shown: Sequence[Tensor], result: Sequence[Any], options: CallOptions) -> None:
        """Raise what the other backend would raise.

        Args:
            event: The profiler's name of the operation.
            shown: The tensors that it reads; if it works in place, the tensors that it changes.
            result: The tensors that it fills, or lists of them.
            options: The reduction, the root, the timeout.
        """

    def translate(self, error: PhalanxError) -> PhalanxError:
        """Return the error as one that programs for the other backend catch as well."""
