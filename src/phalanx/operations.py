"""The operations on tensors that all groups share, without those that reduce: TensorOperations, Work."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, overload, runtime_checkable

from phalanx.errors import UsageError

if TYPE_CHECKING:
    from typing import Literal

    import torch

    Tensor: TypeAlias = torch.Tensor
else:
    Tensor = Any

Timeout: TypeAlias = "float | timedelta | None"


def seconds_of(timeout_s: Timeout, default: float) -> float:
    """Return a limit in seconds; the default when there is none.

    Raises:
        UsageError: It is not positive.
    """
    if timeout_s is None:
        return default
    value = timeout_s.total_seconds() if isinstance(timeout_s, timedelta) else float(timeout_s)
    if not value > 0:
        raise UsageError(f"a timeout of {value} s is not possible; give a positive number")
    return value


@runtime_checkable
class Work(Protocol):
    """An asynchronous operation."""

    def wait(self, timeout_s: Timeout = None) -> None:
        """Block until the operation is done.

        Raises:
            OperationTimeoutError: It is not done in time. The operation goes on.
            PhalanxError: The operation failed.
        """

    def done(self) -> bool:
        """Tell whether the operation has ended, with or without an error."""

    def exception(self) -> BaseException | None:
        """Return the error of the operation; None while it runs or if it succeeded."""

    def result(self) -> Any:
        """Wait for the operation, then return the tensors that it filled."""


class TensorOperations(Protocol):
    """The collectives and messages of a group.

    Every operation takes `timeout_s` (seconds or a timedelta; the default is the group's timeout) and `async_op`. With
    `async_op=True` it returns a Work. Otherwise it blocks and returns None; `recv` returns the source. All operations
    raise PhalanxError.
    """

    @overload
    def broadcast(
        self, tensor: Tensor, root: int = ..., *, timeout_s: Timeout = ..., async_op: Literal[False] = ...
    ) -> None: ...
    @overload
    def broadcast(
        self, tensor: Tensor, root: int = ..., *, timeout_s: Timeout = ..., async_op: Literal[True]
    ) -> Work: ...
    @overload
    def broadcast(
        self, tensor: Tensor, root: int = ..., *, timeout_s: Timeout = ..., async_op: bool
    ) -> Work | None: ...
    def broadcast(self, tensor: Tensor, root: int = 0, *, timeout_s: Timeout = None, async_op: bool = False) -> Any:
        """Copy the root's tensor into every rank's."""

    @overload
    def all_gather(
        self, outputs: Sequence[Tensor], input: Tensor, *, timeout_s: Timeout = ..., async_op: Literal[False] = ...
    ) -> None: ...
    @overload
    def all_gather(
        self, outputs: Sequence[Tensor], input: Tensor, *, timeout_s: Timeout = ..., async_op: Literal[True]
    ) -> Work: ...
    @overload
    def all_gather(
        self, outputs: Sequence[Tensor], input: Tensor, *, timeout_s: Timeout = ..., async_op: bool
    ) -> Work | None: ...
    def all_gather(
        self, outputs: Sequence[Tensor], input: Tensor, *, timeout_s: Timeout = None, async_op: bool = False
    ) -> Any:
        """Copy rank i's input into outputs[i] on every rank; sizes may differ."""

    @overload
    def all_gather_single(
        self, output: Tensor, input: Tensor, *, timeout_s: Timeout = ..., async_op: Literal[False] = ...
    ) -> None: ...
    @overload
    def all_gather_single(
        self, output: Tensor, input: Tensor, *, timeout_s: Timeout = ..., async_op: Literal[True]
    ) -> Work: ...
    @overload
    def all_gather_single(
        self, output: Tensor, input: Tensor, *, timeout_s: Timeout = ..., async_op: bool
    ) -> Work | None: ...
    def all_gather_single(
        self, output: Tensor, input: Tensor, *, timeout_s: Timeout = None, async_op: bool = False
    ) -> Any:
        """Copy all inputs into one output, concatenated or stacked."""

    @overload
    def gather(
        self,
        outputs: Sequence[Tensor] | None,
        input: Tensor,
        root: int = ...,
        *,
        timeout_s: Timeout = ...,
        async_op: Literal[False] = ...,
    ) -> None: ...
    @overload
    def gather(
        self,
        outputs: Sequence[Tensor] | None,
        input: Tensor,
        root: int = ...,
        *,
        timeout_s: Timeout = ...,
        async_op: Literal[True],
    ) -> Work: ...
    @overload
    def gather(
        self,
        outputs: Sequence[Tensor] | None,
        input: Tensor,
        root: int = ...,
        *,
        timeout_s: Timeout = ...,
        async_op: bool,
    ) -> Work | None: ...
    def gather(
        self,
        outputs: Sequence[Tensor] | None,
        input: Tensor,
        root: int = 0,
        *,
        timeout_s: Timeout = None,
        async_op: bool = False,
    ) -> Any:
        """Copy rank i's input into the root's outputs[i]; other ranks give None."""

    @overload
    def scatter(
        self,
        output: Tensor,
        inputs: Sequence[Tensor] | None = ...,
        root: int = ...,
        *,
        timeout_s: Timeout = ...,
        async_op: Literal[False] = ...,
    ) -> None: ...
    @overload
    def scatter(
        self,
        output: Tensor,
        inputs: Sequence[Tensor] | None = ...,
        root: int = ...,
        *,
        timeout_s: Timeout = ...,
        async_op: Literal[True],
    ) -> Work: ...
    @overload
    def scatter(
        self,
        output: Tensor,
        inputs: Sequence[Tensor] | None = ...,
        root: int = ...,
        *,
        timeout_s: Timeout = ...,
        async_op: bool,
    ) -> Work | None: ...
    def scatter(
        self,
        output: Tensor,
        inputs: Sequence[Tensor] | None = None,
        root: int = 0,
        *,
        timeout_s: Timeout = None,
        async_op: bool = False,
    ) -> Any:
        """Copy the root's inputs[i] into rank i's output; other ranks give None."""

    @overload
    def all_to_all(
        self,
        outputs: Sequence[Tensor],
        inputs: Sequence[Tensor],
        *,
        timeout_s: Timeout = ...,
        async_op: Literal[False] = ...,
    ) -> None: ...
    @overload
    def all_to_all(
        self, outputs: Sequence[Tensor], inputs: Sequence[Tensor], *, timeout_s: Timeout = ..., async_op: Literal[True]
    ) -> Work: ...
    @overload
    def all_to_all(
        self, outputs: Sequence[Tensor], inputs: Sequence[Tensor], *, timeout_s: Timeout = ..., async_op: bool
    ) -> Work | None: ...
    def all_to_all(
        self, outputs: Sequence[Tensor], inputs: Sequence[Tensor], *, timeout_s: Timeout = None, async_op: bool = False
    ) -> Any:
        """Copy inputs[i] to rank i, and what rank i has for this rank into outputs[i]."""

    @overload
    def all_to_all_single(
        self,
        output: Tensor,
        input: Tensor,
        output_splits: Sequence[int] | None = ...,
        input_splits: Sequence[int] | None = ...,
        *,
        timeout_s: Timeout = ...,
        async_op: Literal[False] = ...,
    ) -> None: ...
    @overload
    def all_to_all_single(
        self,
        output: Tensor,
        input: Tensor,
        output_splits: Sequence[int] | None = ...,
        input_splits: Sequence[int] | None = ...,
        *,
        timeout_s: Timeout = ...,
        async_op: Literal[True],
    ) -> Work: ...
    @overload
    def all_to_all_single(
        self,
        output: Tensor,
        input: Tensor,
        output_splits: Sequence[int] | None = ...,
        input_splits: Sequence[int] | None = ...,
        *,
        timeout_s: Timeout = ...,
        async_op: bool,
    ) -> Work | None: ...
    def all_to_all_single(
        self,
        output: Tensor,
        input: Tensor,
        output_splits: Sequence[int] | None = None,
        input_splits: Sequence[int] | None = None,
        *,
        timeout_s: Timeout = None,
        async_op: bool = False,
    ) -> Any:
        """Exchange rows of one tensor; without splits every rank gets the same number."""

    @overload
    def barrier(self, *, timeout_s: Timeout = ..., async_op: Literal[False] = ...) -> None: ...
    @overload
    def barrier(self, *, timeout_s: Timeout = ..., async_op: Literal[True]) -> Work: ...
    @overload
    def barrier(self, *, timeout_s: Timeout = ..., async_op: bool) -> Work | None: ...
    def barrier(self, *, timeout_s: Timeout = None, async_op: bool = False) -> Any:
        """Wait until every rank is here."""

    @overload
    def send(
        self,
        tensor: Tensor,
        destination: int,
        tag: int = ...,
        *,
        timeout_s: Timeout = ...,
        async_op: Literal[False] = ...,
    ) -> None: ...
    @overload
    def send(
        self, tensor: Tensor, destination: int, tag: int = ..., *, timeout_s: Timeout = ..., async_op: Literal[True]
    ) -> Work: ...
    @overload
    def send(
        self, tensor: Tensor, destination: int, tag: int = ..., *, timeout_s: Timeout = ..., async_op: bool
    ) -> Work | None: ...
    def send(
        self, tensor: Tensor, destination: int, tag: int = 0, *, timeout_s: Timeout = None, async_op: bool = False
    ) -> Any:
        """Send the tensor to one rank."""

    @overload
    def recv(
        self,
        tensor: Tensor,
        source: int | None = ...,
        tag: int = ...,
        *,
        timeout_s: Timeout = ...,
        async_op: Literal[False] = ...,
    ) -> int: ...
    @overload
    def recv(
        self,
        tensor: Tensor,
        source: int | None = ...,
        tag: int = ...,
        *,
        timeout_s: Timeout = ...,
        async_op: Literal[True],
    ) -> Work: ...
    @overload
    def recv(
        self, tensor: Tensor, source: int | None = ..., tag: int = ..., *, timeout_s: Timeout = ..., async_op: bool
    ) -> Work | int: ...
    def recv(
        self,
        tensor: Tensor,
        source: int | None = None,
        tag: int = 0,
        *,
        timeout_s: Timeout = None,
        async_op: bool = False,
    ) -> Any:
        """Receive into the tensor, from one rank or from any; return the source."""
