"""ReduceOp.AVG of integers as NCCL computes it: the sum, divided and rounded towards zero.

The engine refuses AVG of integers. So the stand-in calls it with SUM, and each rank that gets a result divides it
before the call returns, even with async_op=True, because other code may use the result without a call of wait().
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from phalanx.collectives import ReduceOp, Timeout
from phalanx.errors import PhalanxError, UsageError
from phalanx.groups.stream_order import is_virtual
from phalanx.groups.tensor_gate import tensor_with_memory
from phalanx.torch_backend.call_options import CallOptions
from phalanx.torch_backend.operation import flat


class _Over:
    """The Work of an operation that has ended."""

    def __init__(self, error: PhalanxError | None = None) -> None:
        self._error = error

    def wait(self, timeout_s: Timeout = None) -> None:
        """Return at once.

        Raises:
            PhalanxError: The operation failed.
        """
        if self._error is not None:
            raise self._error

    def done(self) -> bool:
        """Return True."""
        return True

    def exception(self) -> BaseException | None:
        """Return why the operation failed, or None."""
        return self._error

    def result(self) -> None:
        """Return None, because the caller has the tensors."""


def is_integer_average(options: CallOptions, tensors: Sequence[Tensor]) -> bool:
    """Tell whether an operation is an AVG of integers."""
    return options.op is ReduceOp.AVG and any(
        not tensor.is_floating_point() and not tensor.is_complex() for tensor in tensors
    )


def averaging(call: Callable[..., Any], size: int, results: Sequence[Any]) -> Callable[..., Any]:
    """Return a call of the engine that computes the average.

    Args:
        call: The call with the reduction among its arguments.
        size: The number of ranks.
        results: The tensors, or lists of them, that this rank gets.
    """

    def add_up_and_divide(*args: Any, timeout_s: Timeout = None, async_op: bool = False) -> _Over | None:
        try:
            call(*_summing(args), timeout_s=timeout_s)
        except PhalanxError as error:
            if not async_op or isinstance(error, UsageError):
                raise
            return _Over(error)
        with torch._C.DisableTorchFunctionSubclass():
            for tensor in flat(results):
                held = tensor_with_memory(tensor)
                assert held is not None, "the engine has filled it"
                _divide(held, size)
        return _Over() if async_op else None

    return add_up_and_divide


def _summing(args: Sequence[Any]) -> list[Any]:
    """Return the arguments with SUM instead of AVG, also inside lists."""
    return [
        ReduceOp.SUM if arg is ReduceOp.AVG else _summing(arg) if isinstance(arg, (list, tuple)) else arg
        for arg in args
    ]


def _divide(tensor: Tensor, size: int) -> None:
    if not tensor.numel():
        return
    if tensor.is_cuda and not is_virtual(tensor.device.type):  # this process can't touch the memory of a real GPU
        tensor.div_(size, rounding_mode="trunc")
        torch.cuda.current_stream(tensor.device).synchronize()  # other streams may use the result after wait()
        return
    # Divide the memory directly: an operation on the device would belong to the current stream, which may not use the
    # tensor yet. The engine has accepted the tensor, so the memory is there.
    reach = 1 + sum((length - 1) * stride for length, stride in zip(tensor.shape, tensor.stride(), strict=True))
    memory = (ctypes.c_char * (reach * tensor.element_size())).from_address(tensor.data_ptr())
    elements = torch.frombuffer(memory, dtype=tensor.dtype).as_strided(tensor.shape, tensor.stride())
    values = torch._neg_view(elements) if tensor.is_neg() else elements
    values.div_(size, rounding_mode="trunc")
