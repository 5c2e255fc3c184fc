"""Tensors lent to the engine, which holds them until its next operation, and not until the end of this one.

Memory of a device is scarce and counted. So the engine gets objects of its own, which are emptied once it is done.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor


class Loan:
    """The tensors of one operation, as the engine gets them. Threads may share it."""

    def __init__(self, arguments: Sequence[Any]) -> None:
        self._lent: list[Tensor] = []
        self.arguments = [self._lend(argument) for argument in arguments]

    def _lend(self, argument: Any) -> Any:
        if isinstance(argument, Tensor):
            lent = argument.detach()
            self._lent.append(lent)
            return lent
        if isinstance(argument, (list, tuple)):
            return [self._lend(item) for item in argument]
        return argument

    def end(self) -> None:
        """Take the memory back: the engine is done with it."""
        lent, self._lent = self._lent, []
        self.arguments = []
        for tensor in lent:
            tensor.data = tensor.new_empty(0)
