"""ReduceOp.AVG of whole numbers as NCCL computes it: the sum, divided without remainder, towards zero.

The engine refuses it. Here it adds up, and each rank that gets a result divides it: at once, before the call returns,
since nobody has to wait for such an operation before others use its result.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from phalanx.collectives import ReduceOp, Timeout
from phalanx.errors import PhalanxError, UsageError
from phalanx.torch_backend.call_options import CallOptions
from phalanx.torch_backend.effects import flat


class _Over:
    """The Work of an operation that is over."""

    def __init__(self, error: PhalanxError | None = None) -> None:
        self._error = error

    def wait(self, timeout_s: Timeout = None) -> None:
        """Return at once.

        Raises:
            PhalanxError: It failed.
        """
        if self._error is not None:
            raise self._error

    def done(self) -> bool:
        """Tell that it has ended."""
        return True

    def exception(self) -> BaseException | None:
        """Return why it failed."""
        return self._error

    def result(self) -> None:
        """Return None: the tensors are with the caller."""


def is_integer_average(options: CallOptions, tensors: Sequence[Tensor]) -> bool:
    """Tell whether an operation is one of those."""
    return options.op is ReduceOp.AVG and any(
        not tensor.is_floating_point() and not tensor.is_complex() for tensor in tensors
    )


def averaging(call: Callable[..., Any], size: int, results: Sequence[Any]) -> Callable[..., Any]:
    """Return a call of the engine that averages instead of adding up.

    Args:
        call: What adds up, given the reduction among its arguments.
        size: How many ranks there are.
        results: The tensors, or lists of them, that this rank gets.
    """

    def add_up_and_divide(*args: Any, timeout_s: Timeout = None, async_op: bool = False) -> _Over | None:
        try:
            call(*(ReduceOp.SUM if arg is ReduceOp.AVG else arg for arg in args), timeout_s=timeout_s)
        except PhalanxError as error:
            if not async_op or isinstance(error, UsageError):
                raise
            return _Over(error)
        for tensor in flat(results):
            _divide(tensor, size)
        return _Over() if async_op else None

    return add_up_and_divide


def _divide(tensor: Tensor, size: int) -> None:
    if not tensor.numel():
        return
    # Over the memory itself: an operation of the device would count as one of the current stream, which may not touch
    # the tensor yet. NCCL's tensors are dense, in whatever order.
    memory = (ctypes.c_char * (tensor.numel() * tensor.element_size())).from_address(tensor.data_ptr())
    torch.frombuffer(memory, dtype=tensor.dtype).div_(size, rounding_mode="trunc")
