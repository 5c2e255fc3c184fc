from __future__ import annotations

from typing import Protocol


class Amount(Protocol):
    """How many times a stress test does what it does."""

    def __call__(self, *, quick: int, whole: int) -> int: ...
