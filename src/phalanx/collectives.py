"""The words all groups share: what can be reduced how, what a group can do, what an operation under way is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import timedelta
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, overload, runtime_checkable

if TYPE_CHECKING:
    from typing import Literal

    import torch

    Tensor: TypeAlias = torch.Tensor
else:
    Tensor = Any

Timeout: TypeAlias = "float | timedelta | None"


class ReduceOp(IntEnum):
    """How values of several ranks become one. The numbers are the engine's."""

    SUM = 0
    AVG = 1
    PRODUCT = 2
    MIN = 3
    MAX = 4
    BAND = 5
    BOR = 6
    BXOR = 7

    @staticmethod
    def premul_sum(factor: float) -> PremulSum:
        """Multiply this rank's values by the factor, then sum."""
        return PremulSum(float(factor))


@dataclass(frozen=True)
class PremulSum:
    """A sum of values that each rank multiplies by a factor of its own."""

    factor: float


AnyReduceOp: TypeAlias = "ReduceOp | PremulSum"


@runtime_checkable
class Work(Protocol):
    """An operation under way."""

    def wait(self, timeout_s: Timeout = None) -> None:
        """Block until it is done.

        Raises:
            OperationTimeoutError: It is not done in time; it goes on.
            PhalanxError: It failed.
        """

    def done(self) -> bool:
        """Tell whether it has ended, well or not."""

    def exception(self) -> BaseException | None:
        """Return why it failed; None while it runs or when it went well."""

    def result(self) -> Any:
        """Wait, then return the tensors it filled."""


class Group(Protocol):
    """Ranks that work together. Each rank holds an object of its own; several threads may share it.

    Every operation takes `timeout_s` (seconds or a timedelta; the group's own when not given) and `async_op`. Blocking
    calls return None, `recv` the source; with `async_op=True` they return a Work. All raise PhalanxError.
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

    @overload
    def all_reduce(
        self, tensor: Tensor, op: AnyReduceOp = ..., *, timeout_s: Timeout = ..., async_op: Literal[False] = ...
    ) -> None: ...
    @overload
    def all_reduce(
        self, tensor: Tensor, op: AnyReduceOp = ..., *, timeout_s: Timeout = ..., async_op: bool
    ) -> Work | None: ...
    def all_reduce_coalesced(
        self, tensors: Sequence[Tensor], op: AnyReduceOp = ..., *, timeout_s: Timeout = ..., async_op: bool = ...
    ) -> Work | None:
        """Reduce a list of tensors over all ranks, in place."""

    def reduce(
        self, tensor: Tensor, root: int = ..., op: AnyReduceOp = ..., *, timeout_s: Timeout = ..., async_op: bool = ...
    ) -> Work | None:
        """Reduce the tensor into the root's; the other ranks' tensors stay as they are."""

    def broadcast(
        self, tensor: Tensor, root: int = ..., *, timeout_s: Timeout = ..., async_op: bool = ...
    ) -> Work | None:
        """Copy the root's tensor into every rank's."""

    def all_gather(
        self, outputs: Sequence[Tensor], input: Tensor, *, timeout_s: Timeout = ..., async_op: bool = ...
    ) -> Work | None:
        """Copy rank i's input into outputs[i] on every rank; sizes may differ."""

    def all_gather_single(
        self, output: Tensor, input: Tensor, *, timeout_s: Timeout = ..., async_op: bool = ...
    ) -> Work | None:
        """Copy all inputs into one output, concatenated or stacked."""

    def gather(
        self,
        outputs: Sequence[Tensor] | None,
        input: Tensor,
        root: int = ...,
        *,
        timeout_s: Timeout = ...,
        async_op: bool = ...,
    ) -> Work | None:
        """Copy rank i's input into the root's outputs[i]; other ranks give None."""

    def scatter(
        self,
        output: Tensor,
        inputs: Sequence[Tensor] | None = ...,
        root: int = ...,
        *,
        timeout_s: Timeout = ...,
        async_op: bool = ...,
    ) -> Work | None:
        """Copy the root's inputs[i] into rank i's output; other ranks give None."""

    def reduce_scatter(
        self,
        output: Tensor,
        inputs: Sequence[Tensor],
        op: AnyReduceOp = ...,
        *,
        timeout_s: Timeout = ...,
        async_op: bool = ...,
    ) -> Work | None:
        """Reduce inputs[i] of all ranks into rank i's output; sizes may differ."""

    def reduce_scatter_single(
        self, output: Tensor, input: Tensor, op: AnyReduceOp = ..., *, timeout_s: Timeout = ..., async_op: bool = ...
    ) -> Work | None:
        """Reduce the i-th block of all ranks' inputs into rank i's output."""

    def all_to_all(
        self, outputs: Sequence[Tensor], inputs: Sequence[Tensor], *, timeout_s: Timeout = ..., async_op: bool = ...
    ) -> Work | None:
        """Copy inputs[i] to rank i, and what rank i has for this rank into outputs[i]."""

    def all_to_all_single(
        self,
        output: Tensor,
        input: Tensor,
        output_splits: Sequence[int] | None = ...,
        input_splits: Sequence[int] | None = ...,
        *,
        timeout_s: Timeout = ...,
        async_op: bool = ...,
    ) -> Work | None:
        """Exchange rows of one tensor; without splits every rank gets the same number."""

    def barrier(self, *, timeout_s: Timeout = ..., async_op: bool = ...) -> Work | None:
        """Wait until every rank is here."""

    def send(
        self, tensor: Tensor, destination: int, tag: int = ..., *, timeout_s: Timeout = ..., async_op: bool = ...
    ) -> Work | None:
        """Send the tensor to one rank."""

    def recv(
        self,
        tensor: Tensor,
        source: int | None = ...,
        tag: int = ...,
        *,
        timeout_s: Timeout = ...,
        async_op: bool = ...,
    ) -> Work | int:
        """Receive into the tensor, from one rank or from any; return the source."""

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


RankFunction: TypeAlias = "Callable[..., Any]"
