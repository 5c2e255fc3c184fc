"""The operations that reduce tensors, and how they combine the values of all ranks: ReduceOp, Reductions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, overload

from phalanx.errors import UsageError
from phalanx.operations import Tensor, Timeout, Work

if TYPE_CHECKING:
    from typing import Literal

    import torch.distributed as dist

    # Its words are those of ReduceOp.
    AnyReduceOp: TypeAlias = (
        "ReduceOp | PremulSum | dist.ReduceOp | dist.ReduceOp.RedOpType"
        ' | Literal["sum", "avg", "product", "min", "max", "band", "bor", "bxor"]'
    )
else:
    AnyReduceOp = Any


class ReduceOp(IntEnum):
    """How the values of all ranks are combined. The engine uses the same numbers."""

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
        """Multiply this rank's values by the factor, then sum.

        Raises:
            UsageError: The factor is no number.
        """
        return PremulSum(factor)


@dataclass(frozen=True)
class PremulSum:
    """A sum in which each rank first multiplies its values by its own factor."""

    factor: float

    def __post_init__(self) -> None:
        try:
            object.__setattr__(self, "factor", float(self.factor))
        except (TypeError, ValueError, OverflowError, RuntimeError) as error:  # the last one from torch
            raise UsageError(f"the factor of premul_sum must be one number, not {self.factor!r}") from error


Reduction: TypeAlias = "ReduceOp | PremulSum"


def as_reduce_op(op: AnyReduceOp) -> Reduction:
    """Return the reduction that a caller means: by its own name, in a word, or as torch.distributed names it.

    Raises:
        UsageError: There is no such reduction.
    """
    if isinstance(op, (ReduceOp, PremulSum)):
        return op
    if isinstance(op, int) and 0 <= op < len(ReduceOp):
        return ReduceOp(op)
    kind: Any = getattr(op, "op", op)  # torch wraps the kind if the reduction has a factor, and also on request
    name = kind.upper() if isinstance(kind, str) and kind.islower() else getattr(kind, "name", "")
    if name in ReduceOp.__members__:
        return ReduceOp[name]
    if name == "PREMUL_SUM" and kind is not op:
        with_factor: Any = op
        return ReduceOp.premul_sum(with_factor.__getstate__()[1])
    words = ", ".join(f'"{each.name.lower()}"' for each in ReduceOp)
    raise UsageError(
        f"there is no reduction {op!r}; give a phalanx.ReduceOp, a torch.distributed.ReduceOp, or one of {words}"
    )


class Reductions(Protocol):
    """The collectives of a group that reduce. The arguments are those of TensorOperations, with `op`."""

    @overload
    def all_reduce(
        self, tensor: Tensor, op: AnyReduceOp = ..., *, timeout_s: Timeout = ..., async_op: Literal[False] = ...
    ) -> None: ...
    @overload
    def all_reduce(
        self, tensor: Tensor, op: AnyReduceOp = ..., *, timeout_s: Timeout = ..., async_op: Literal[True]
    ) -> Work: ...
    @overload
    def all_reduce(
        self, tensor: Tensor, op: AnyReduceOp = ..., *, timeout_s: Timeout = ..., async_op: bool
    ) -> Work | None: ...
    def all_reduce(
        self, tensor: Tensor, op: AnyReduceOp = ReduceOp.SUM, *, timeout_s: Timeout = None, async_op: bool = False
    ) -> Any:
        """Reduce the tensor over all ranks, in place."""

    @overload
    def all_reduce_coalesced(
        self,
        tensors: Sequence[Tensor],
        op: AnyReduceOp = ...,
        *,
        timeout_s: Timeout = ...,
        async_op: Literal[False] = ...,
    ) -> None: ...
    @overload
    def all_reduce_coalesced(
        self, tensors: Sequence[Tensor], op: AnyReduceOp = ..., *, timeout_s: Timeout = ..., async_op: Literal[True]
    ) -> Work: ...
    @overload
    def all_reduce_coalesced(
        self, tensors: Sequence[Tensor], op: AnyReduceOp = ..., *, timeout_s: Timeout = ..., async_op: bool
    ) -> Work | None: ...
    def all_reduce_coalesced(
        self,
        tensors: Sequence[Tensor],
        op: AnyReduceOp = ReduceOp.SUM,
        *,
        timeout_s: Timeout = None,
        async_op: bool = False,
    ) -> Any:
        """Reduce a list of tensors over all ranks, in place."""

    @overload
    def reduce(
        self,
        tensor: Tensor,
        root: int = ...,
        op: AnyReduceOp = ...,
        *,
        timeout_s: Timeout = ...,
        async_op: Literal[False] = ...,
    ) -> None: ...
    @overload
    def reduce(
        self,
        tensor: Tensor,
        root: int = ...,
        op: AnyReduceOp = ...,
        *,
        timeout_s: Timeout = ...,
        async_op: Literal[True],
    ) -> Work: ...
    @overload
    def reduce(
        self, tensor: Tensor, root: int = ..., op: AnyReduceOp = ..., *, timeout_s: Timeout = ..., async_op: bool
    ) -> Work | None: ...
    def reduce(
        self,
        tensor: Tensor,
        root: int = 0,
        op: AnyReduceOp = ReduceOp.SUM,
        *,
        timeout_s: Timeout = None,
        async_op: bool = False,
    ) -> Any:
        """Reduce the tensor into the root's; the other ranks' tensors stay as they are."""

    @overload
    def reduce_scatter(
        self,
        output: Tensor,
        inputs: Sequence[Tensor],
        op: AnyReduceOp = ...,
        *,
        timeout_s: Timeout = ...,
        async_op: Literal[False] = ...,
    ) -> None: ...
    @overload
    def reduce_scatter(
        self,
        output: Tensor,
        inputs: Sequence[Tensor],
        op: AnyReduceOp = ...,
        *,
        timeout_s: Timeout = ...,
        async_op: Literal[True],
    ) -> Work: ...
    @overload
    def reduce_scatter(
        self,
        output: Tensor,
        inputs: Sequence[Tensor],
        op: AnyReduceOp = ...,
        *,
        timeout_s: Timeout = ...,
        async_op: bool,
    ) -> Work | None: ...
    def reduce_scatter(
        self,
        output: Tensor,
        inputs: Sequence[Tensor],
        op: AnyReduceOp = ReduceOp.SUM,
        *,
        timeout_s: Timeout = None,
        async_op: bool = False,
    ) -> Any:
        """Reduce inputs[i] of all ranks into rank i's output; sizes may differ."""

    @overload
    def reduce_scatter_single(
        self,
        output: Tensor,
        input: Tensor,
        op: AnyReduceOp = ...,
        *,
        timeout_s: Timeout = ...,
        async_op: Literal[False] = ...,
    ) -> None: ...
    @overload
    def reduce_scatter_single(
        self, output: Tensor, input: Tensor, op: AnyReduceOp = ..., *, timeout_s: Timeout = ..., async_op: Literal[True]
    ) -> Work: ...
    @overload
    def reduce_scatter_single(
        self, output: Tensor, input: Tensor, op: AnyReduceOp = ..., *, timeout_s: Timeout = ..., async_op: bool
    ) -> Work | None: ...
    def reduce_scatter_single(
        self,
        output: Tensor,
        input: Tensor,
        op: AnyReduceOp = ReduceOp.SUM,
        *,
        timeout_s: Timeout = None,
        async_op: bool = False,
    ) -> Any:
        """Reduce the i-th block of all ranks' inputs into rank i's output."""
