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
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def name(self) -> str: ...
    @property
    def ranks(self) -> tuple[int, ...]:
        """The members as ranks of the parent group, in the order of this one."""

    @property
    def timeout_s(self) -> float: ...

    def set_timeout(self, timeout_s: float | timedelta) -> None: ...

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
    ) -> Work | None: ...
    def reduce(
        self, tensor: Tensor, root: int = ..., op: AnyReduceOp = ..., *, timeout_s: Timeout = ..., async_op: bool = ...
    ) -> Work | None: ...
    def broadcast(
        self, tensor: Tensor, root: int = ..., *, timeout_s: Timeout = ..., async_op: bool = ...
    ) -> Work | None: ...
    def all_gather(
        self, outputs: Sequence[Tensor], input: Tensor, *, timeout_s: Timeout = ..., async_op: bool = ...
    ) -> Work | None: ...
    def all_gather_single(
        self, output: Tensor, input: Tensor, *, timeout_s: Timeout = ..., async_op: bool = ...
    ) -> Work | None: ...
    def gather(
        self,
        outputs: Sequence[Tensor] | None,
        input: Tensor,
        root: int = ...,
        *,
        timeout_s: Timeout = ...,
        async_op: bool = ...,
    ) -> Work | None: ...
    def scatter(
        self,
        output: Tensor,
        inputs: Sequence[Tensor] | None = ...,
        root: int = ...,
        *,
        timeout_s: Timeout = ...,
        async_op: bool = ...,
    ) -> Work | None: ...
    def reduce_scatter(
        self,
        output: Tensor,
        inputs: Sequence[Tensor],
        op: AnyReduceOp = ...,
        *,
        timeout_s: Timeout = ...,
        async_op: bool = ...,
    ) -> Work | None: ...
    def reduce_scatter_single(
        self, output: Tensor, input: Tensor, op: AnyReduceOp = ..., *, timeout_s: Timeout = ..., async_op: bool = ...
    ) -> Work | None: ...
    def all_to_all(
        self, outputs: Sequence[Tensor], inputs: Sequence[Tensor], *, timeout_s: Timeout = ..., async_op: bool = ...
    ) -> Work | None: ...
    def all_to_all_single(
        self,
        output: Tensor,
        input: Tensor,
        output_splits: Sequence[int] | None = ...,
        input_splits: Sequence[int] | None = ...,
        *,
        timeout_s: Timeout = ...,
        async_op: bool = ...,
    ) -> Work | None: ...
    def barrier(self, *, timeout_s: Timeout = ..., async_op: bool = ...) -> Work | None: ...
    def send(
        self, tensor: Tensor, destination: int, tag: int = ..., *, timeout_s: Timeout = ..., async_op: bool = ...
    ) -> Work | None: ...
    def recv(
        self,
        tensor: Tensor,
        source: int | None = ...,
        tag: int = ...,
        *,
        timeout_s: Timeout = ...,
        async_op: bool = ...,
    ) -> Work | int: ...

    def all_gather_object(self, value: Any) -> list[Any]: ...
    def gather_object(self, value: Any, root: int = ...) -> list[Any] | None: ...
    def broadcast_object(self, value: Any = ..., root: int = ...) -> Any: ...
    def scatter_object(self, values: Sequence[Any] | None = ..., root: int = ...) -> Any: ...

    def empty(self, *shape: int, dtype: Any = ...) -> Tensor: ...
    def coalescing(self) -> AbstractContextManager[Any]: ...
    def split(self, ranks: Sequence[int], *, name: str | None = ..., timeout_s: Timeout = ...) -> Group | None: ...
    def split_by_color(
        self, color: int | None, key: int = ..., *, name: str | None = ..., timeout_s: Timeout = ...
    ) -> Group | None: ...
    def merge(self, place: str, size: int, *, name: str | None = ..., timeout_s: Timeout = ...) -> Group: ...
    def shrink(self, *, without: Sequence[int] = ..., timeout_s: Timeout = ...) -> Group: ...
    def abort(self, reason: str = ...) -> None: ...
    def close(self) -> None: ...
    def __enter__(self) -> Group: ...
    def __exit__(self, *exception: object) -> None: ...


RankFunction: TypeAlias = "Callable[..., Any]"
