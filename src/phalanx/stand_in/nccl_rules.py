"""NCCL's rules, with the error messages of torch's ProcessGroupNCCL."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

import torch
from torch import Tensor

from phalanx.collectives import PremulSum, ReduceOp
from phalanx.errors import DeadlockError, OperationTimeoutError, PhalanxError, UsageError
from phalanx.stand_in.one_rank_per_device import OneRankPerDevice
from phalanx.torch_backend.call_options import CallOptions
from phalanx.torch_backend.operation import flat
from phalanx.torch_backend.rules import BITWISE, MESSAGES, REDUCTIONS
from phalanx.torch_backend.untyped import dist

_ORDERED = {ReduceOp.MIN: "MIN", ReduceOp.MAX: "MAX", ReduceOp.PRODUCT: "PRODUCT"}
_FLOATS_TO_SCALE = {torch.float16, torch.bfloat16, torch.float32, torch.float64}
_DTYPES = {
    *(torch.int8, torch.uint8, torch.int32, torch.int64, torch.bool),
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
    *(torch.complex64, torch.complex128),
    *(torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz),
}
_FLOAT8_NOT_REDUCED = {torch.float8_e4m3fnuz, torch.float8_e5m2fnuz}

# Classes that are made once: phalanx's errors that are also torch's DistBackendError.
_as_backend_errors: dict[type[PhalanxError], type[PhalanxError]] = {}


class NcclRules:
    """NCCL's rules for one group."""

    def __init__(self, devices: OneRankPerDevice) -> None:
        self._devices = devices

    def check(self, event: str, shown: Sequence[Tensor], result: Sequence[Any], options: CallOptions) -> None:
        """Refuse what NCCL refuses.

        Raises:
            RuntimeError: A tensor is not on a GPU or is sparse, or the dtype does not support the reduction.
            ValueError: A tensor is not contiguous, or the reduction is not one of NCCL's.
            TypeError: NCCL does not support the dtype.
            DistBackendError: Two ranks use one device, or this rank uses another device than the one it is bound to.
        """
        if event == "recvAnySource":
            raise NotImplementedError("ProcessGroupNCCL does not support recvAnysource")
        tensors = [*shown, *flat(result)]
        if not tensors:
            return  # a barrier
        for tensor in tensors:
            _check_tensor(event, tensor)
        if any(tensor.device != tensors[0].device for tensor in tensors):
            raise ValueError("Expected list of tensors on the same device")
        if event in REDUCTIONS:
            _check_reduction(event, shown, options)
        self._devices.check(tensors[0].device, event, is_message=event in MESSAGES)

    def translate(self, error: PhalanxError) -> PhalanxError:
        """Return the error as one that is also a DistBackendError, which programs for NCCL catch."""
        if isinstance(error, (UsageError, dist.DistBackendError)):
            return error
        text = str(error)
        if isinstance(error, OperationTimeoutError) and not isinstance(error, DeadlockError):
            text = f"[Rank {error.rank}] Watchdog caught collective operation timeout: {text}"
        return _rebuild(type(error), text, error.__dict__)


def _backend_error(kind: type[PhalanxError]) -> type[PhalanxError]:
    if kind not in _as_backend_errors:

        def reduce(self: PhalanxError) -> tuple[Any, ...]:
            return _rebuild, (kind, str(self), self.__dict__)

        words = {"__module__": kind.__module__, "__doc__": kind.__doc__, "__reduce__": reduce}
        _as_backend_errors[kind] = type(kind.__name__, (kind, dist.DistBackendError), words)
    return _as_backend_errors[kind]


def _rebuild(kind: type[PhalanxError], text: str, attributes: dict[str, Any]) -> PhalanxError:
    error = _backend_error(kind)(text)
    error.__dict__.update(attributes)
    return error


def _check_tensor(event: str, tensor: Tensor) -> None:
    if not tensor.is_cuda:
        raise RuntimeError(f"No backend type associated with device type {tensor.device.type}")
    if tensor.layout is not torch.strided:
        _refuse_sparse(event)
    if event not in MESSAGES and not _is_contiguous(tensor):
        raise ValueError("Tensors must be contiguous")
    if tensor.dtype not in _DTYPES:
        raise TypeError(f"Input tensor data type is not supported for NCCL process group: {tensor.dtype}")


def _refuse_sparse(event: str) -> NoReturn:
    if event == "all_reduce":
        raise RuntimeError("NCCL does not support all_reduce with sparse tensors. Please use dense tensors instead.")
    raise ValueError("Tensors must be CUDA and dense")


def _is_contiguous(tensor: Tensor) -> bool:
    if tensor.is_contiguous():
        return True
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    return tensor.dim() in formats and tensor.is_contiguous(memory_format=formats[tensor.dim()])


def _check_reduction(event: str, tensors: Sequence[Tensor], options: CallOptions) -> None:
    op, dtype = options.op, tensors[0].dtype
    if any(tensor.dtype is not dtype for tensor in tensors):
        raise TypeError("Tensors must have identical type")
    if isinstance(op, PremulSum):
        if dtype not in _FLOATS_TO_SCALE:
            raise TypeError("PreMulSum Data type must be half, float, bfloat16 or double")
        return
    if op in BITWISE:
        raise ValueError(f"Cannot use ReduceOp.{BITWISE[op]} with NCCL")
    if op in _ORDERED and dtype.is_complex:
        raise ValueError(f"{event} does not support {_ORDERED[op]} on complex tensors")
    if op is ReduceOp.AVG and dtype is torch.bool:
        raise TypeError("Cannot use ReduceOp.AVG with boolean inputs")
    if dtype in _FLOAT8_NOT_REDUCED:
        raise RuntimeError("Unsupported Float8 type for NCCL reduction")
