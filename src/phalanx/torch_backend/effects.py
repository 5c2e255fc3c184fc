"""Which tensors an operation reads and which it writes, for devices whose streams have to be ordered around it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from torch import Tensor

_ONLY_READ = {"send"}
_ONLY_WRITE = {"recv", "recvAnySource"}


class Effects(NamedTuple):
    """An operation, seen from its tensors."""

    event: str
    shown: Sequence[Tensor]
    result: list[Any]
    is_root: bool = False

    def reads(self) -> list[Tensor]:
        """Return what it reads."""
        if self.event in _ONLY_WRITE or (self.event in ("broadcast", "scatter") and not self.is_root):
            return []
        return list(self.shown)

    def writes(self) -> list[Tensor]:
        """Return what it writes."""
        if self.event in _ONLY_READ:
            return []
        if self.event == "broadcast" and self.is_root:
            return []
        if self.event == "reduce" and not self.is_root:
            return []
        return list(flat(self.result))


def flat(nested: Any) -> Iterator[Tensor]:
    """Yield all tensors of a list that may hold lists."""
    for item in nested:
        if isinstance(item, Tensor):
            yield item
        else:
            yield from flat(item)
