"""The Group protocol: what every group can do."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from datetime import timedelta
from typing import Any, Protocol

from phalanx.operations import Tensor, TensorOperations, Timeout, Work, seconds_of
from phalanx.reductions import AnyReduceOp, PremulSum, ReduceOp, Reduction, Reductions, as_reduce_op

__all__ = [
    "AnyReduceOp",
    "Group",
    "LocalGroup",
    "PremulSum",
    "ReduceOp",
    "Reduction",
    "Timeout",
    "Work",
    "as_reduce_op",
    "seconds_of",
]


class Group(Reductions, TensorOperations, Protocol):
    """Ranks that communicate with each other. Each rank holds its own object; several threads may share it.

    The operations on tensors come from Reductions and TensorOperations.
    """

    @property
    def rank(self) -> int:
        """The number of this rank, from 0."""

    @property
    def size(self) -> int:
        """The number of ranks."""

    @property
    def name(self) -> str:
        """The group's name."""

    @property
    def ranks(self) -> tuple[int, ...]:
        """The number of each member in the parent group, in the order of this group."""

    @property
    def timeout_s(self) -> float:
        """The timeout of operations that have none of their own."""

    @property
    def is_closed(self) -> bool:
        """Whether this rank has left the group."""

    def set_timeout(self, timeout_s: float | timedelta) -> None:
        """Set the timeout of operations that have none of their own."""

    def all_gather_object(self, value: Any) -> list[Any]:
        """Return every rank's value, in rank order."""

    def gather_object(self, value: Any, root: int = 0) -> list[Any] | None:
        """Return every rank's value on the root, None elsewhere."""

    def broadcast_object(self, value: Any = None, root: int = 0) -> Any:
        """Return the root's value."""

    def scatter_object(self, values: Sequence[Any] | None = None, root: int = 0) -> Any:
        """Return the root's values[i] on rank i."""

    def empty(self, *shape: int, dtype: Any = None, timeout_s: Timeout = None) -> Tensor:
        """Return a tensor in memory that all ranks share."""

    def coalescing(self, *, async_op: bool = False) -> AbstractContextManager[Any]:
        """Launch the calls inside a `with` block together."""

    def split(self, ranks: Sequence[int], *, name: str | None = None, timeout_s: Timeout = None) -> Group | None:
        """Make a group of some of the ranks. Only its members need to call this."""

    def split_by_color(
        self, color: int | None, key: int = 0, *, name: str | None = None, timeout_s: Timeout = None
    ) -> Group | None:
        """Make one group per color. Every rank must call this."""

    def merge(self, place: str, size: int, *, name: str | None = None, timeout_s: Timeout = None) -> Group:
        """Make one group of all ranks that call this with the same place, `size` in all."""

    def shrink(self, *, without: Sequence[int] = (), timeout_s: Timeout = None) -> Group:
        """Make a group of the ranks that are still alive. Every survivor must call this."""

    def abort(self, reason: str = "") -> None:
        """Break the group: every rank that waits in it gets an AbortedError at once."""

    def close(self) -> None:
        """Wait for operations under way, then leave the group."""

    def __enter__(self) -> Group: ...
    def __exit__(self, *exception: object) -> None: ...


class LocalGroup(Group, Protocol):
    """A group whose ranks share memory: what the rest of phalanx needs of it, beyond what programs use."""

    @property
    def nonce(self) -> bytes:
        """What tells this group from all others."""

    def refuse(self, operation: str, text: str) -> BaseException:
        """Tell peers in the same operation that this rank's arguments were refused, and return the error to raise."""

    def fail(self, text: str) -> None:
        """Break the group because this rank has raised."""

    def watch(self, ancestor: LocalGroup) -> None:
        """Break when a launcher breaks the ancestor."""

    def drain(self) -> None:
        """Wait for operations under way."""

    def leave(self) -> None:
        """Leave the group at once; operations under way fail."""

    def split(self, ranks: Sequence[int], *, name: str | None = None, timeout_s: Timeout = None) -> LocalGroup | None:
        """Make a group of some of the ranks."""

    def split_by_color(
        self, color: int | None, key: int = 0, *, name: str | None = None, timeout_s: Timeout = None
    ) -> LocalGroup | None:
        """Make one group per color."""

    def merge(self, place: str, size: int, *, name: str | None = None, timeout_s: Timeout = None) -> LocalGroup:
        """Become one group with others that meet at the same place."""

    def shrink(self, *, without: Sequence[int] = (), timeout_s: Timeout = None) -> LocalGroup:
        """Make a group of the ranks that are left."""
