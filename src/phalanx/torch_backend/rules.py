"""What a group refuses beyond what the engine can't do: a stand-in keeps to the rules of what it stands in for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from torch import Tensor

from phalanx.errors import PhalanxError
from phalanx.torch_backend.call_options import CallOptions


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


def translated(error: PhalanxError, rules: Rules | None) -> PhalanxError:
    """Return the error as a group with these rules raises it."""
    return error if rules is None else rules.translate(error)
