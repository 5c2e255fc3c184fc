"""What a group can do."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from datetime import timedelta
from typing import Any, Protocol

from phalanx.operations import AnyReduceOp, PremulSum, ReduceOp, Tensor, TensorOperations, Timeout, Work

__all__ = ["AnyReduceOp", "Group", "PremulSum", "ReduceOp", "Timeout", "Work"]


class Group(TensorOperations, Protocol):
    """Ranks that work together. Each rank holds an object of its own; several threads may share it.

    Its operations on tensors are in TensorOperations.
    """

    @property
    def rank(self) -> int:
        """This rank, from 0."""

    @property
    def size(self) -> int:
        """How many ranks there are."""

    @property
    def name(self) -> str:
        """The group's name."""

    @property
    def ranks(self) -> tuple[int, ...]:
        """The members as ranks of the parent group, in the order of this one."""

    @property
    def timeout_s(self) -> float:
        """How long operations wait unless told otherwise."""

    def set_timeout(self, timeout_s: float | timedelta) -> None:
        """Set how long operations without a timeout of their own may take."""

    def all_gather_object(self, value: Any) -> list[Any]:
        """Return every rank's value, in rank order."""

    def gather_object(self, value: Any, root: int = ...) -> list[Any] | None:
        """Return every rank's value on the root, None elsewhere."""

    def broadcast_object(self, value: Any = ..., root: int = ...) -> Any:
        """Return the root's value."""

    def scatter_object(self, values: Sequence[Any] | None = ..., root: int = ...) -> Any:
        """Return the root's values[i] on rank i."""

    def empty(self, *shape: int, dtype: Any = ..., timeout_s: Timeout = ...) -> Tensor:
        """Return a tensor in memory that all ranks share."""

    def coalescing(self, *, async_op: bool = ...) -> AbstractContextManager[Any]:
        """Launch the calls inside a `with` block together."""

    def split(self, ranks: Sequence[int], *, name: str | None = ..., timeout_s: Timeout = ...) -> Group | None:
        """Make a group of some of the ranks."""

    def split_by_color(
        self, color: int | None, key: int = ..., *, name: str | None = ..., timeout_s: Timeout = ...
    ) -> Group | None:
        """Make one group per color."""

    def merge(self, place: str, size: int, *, name: str | None = ..., timeout_s: Timeout = ...) -> Group:
        """Become one group with others that meet at the same place."""

    def shrink(self, *, without: Sequence[int] = ..., timeout_s: Timeout = ...) -> Group:
        """Make a group of the ranks that are left."""

    def abort(self, reason: str = ...) -> None:
        """Break the group for everybody, at once."""

    def close(self) -> None:
        """Leave the group."""

    def __enter__(self) -> Group: ...
    def __exit__(self, *exception: object) -> None: ...
