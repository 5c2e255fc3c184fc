"""The numbers every collective must give, computed in one process with NumPy and torch."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any

import numpy
import torch

from phalanx import ReduceOp

INTEGERS = (
    torch.int8,
    torch.uint8,
    torch.int16,
    torch.uint16,
    torch.int32,
    torch.uint32,
    torch.int64,
    torch.uint64,
)
HALVES = (torch.float16, torch.bfloat16)
FLOAT8S = (torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz)
FLOATS = (*HALVES, torch.float32, torch.float64)
COMPLEXES = (torch.complex64, torch.complex128)
DTYPES = (torch.bool, *INTEGERS, *FLOATS, *COMPLEXES, *FLOAT8S)

_UFUNCS: dict[ReduceOp, Any] = {
    ReduceOp.SUM: numpy.add,
    ReduceOp.AVG: numpy.add,
    ReduceOp.PRODUCT: numpy.multiply,
    ReduceOp.MIN: numpy.minimum,
    ReduceOp.MAX: numpy.maximum,
    ReduceOp.BAND: numpy.bitwise_and,
    ReduceOp.BOR: numpy.bitwise_or,
    ReduceOp.BXOR: numpy.bitwise_xor,
}
_BOOL_UFUNCS: dict[ReduceOp, Any] = {
    **_UFUNCS,
    ReduceOp.SUM: numpy.logical_or,
    ReduceOp.MAX: numpy.logical_or,
    ReduceOp.PRODUCT: numpy.logical_and,
    ReduceOp.MIN: numpy.logical_and,
}


def ops_of(dtype: torch.dtype) -> tuple[ReduceOp, ...]:
    """Return the reductions that have a meaning for a type."""
    if dtype.is_complex:
        return (ReduceOp.SUM, ReduceOp.AVG)
    if dtype.is_floating_point:
        return (ReduceOp.SUM, ReduceOp.AVG, ReduceOp.PRODUCT, ReduceOp.MIN, ReduceOp.MAX)
    return tuple(op for op in ReduceOp if op is not ReduceOp.AVG)


def values(dtype: torch.dtype, shape: Sequence[int] | int, *seed: int) -> torch.Tensor:
    """Return random values on the default device, the same for the same seed on every rank.

    Integers take all their bits.
    """
    return _values_on_host(dtype, shape, *seed).to(torch.get_default_device())


def _values_on_host(dtype: torch.dtype, shape: Sequence[int] | int, *seed: int) -> torch.Tensor:
    shape = (shape,) if isinstance(shape, int) else tuple(shape)
    count = int(numpy.prod(shape, dtype=numpy.int64))
    random = numpy.random.default_rng([dtype.itemsize, *seed])
    if dtype is torch.bool:
        return torch.from_numpy(random.integers(0, 2, count).astype(bool)).view(shape)
    if dtype in INTEGERS:
        data = random.bytes(count * dtype.itemsize)
        return torch.frombuffer(bytearray(data), dtype=dtype).view(shape) if count else torch.empty(shape, dtype=dtype)
    if dtype.is_complex:
        parts = random.standard_normal((2, count))
        return torch.from_numpy(parts[0] + 1j * parts[1]).to(dtype).view(shape)
    return torch.from_numpy(random.standard_normal(count)).to(dtype).view(shape)


def reduced(tensors: Sequence[torch.Tensor], op: ReduceOp) -> torch.Tensor:
    """Reduce in rank order, in host memory: the order is fixed, so the bits are."""
    dtype, shape = tensors[0].dtype, tensors[0].shape
    flat = [tensor.cpu().contiguous().reshape(-1) for tensor in tensors]
    if dtype in (*HALVES, *FLOAT8S):
        return _fold([tensor.float() for tensor in flat], op).to(dtype).view(shape)
    return _fold(flat, op).view(shape)


def _fold(tensors: Sequence[torch.Tensor], op: ReduceOp) -> torch.Tensor:
    ufunc = (_BOOL_UFUNCS if tensors[0].dtype is torch.bool else _UFUNCS)[op]
    with numpy.errstate(all="ignore"):
        total: Any = reduce(ufunc, [tensor.numpy() for tensor in tensors])
        if op is ReduceOp.AVG:
            parts = total.view(total.real.dtype)
            total = (parts / parts.dtype.type(len(tensors))).view(total.dtype)
    return torch.from_numpy(numpy.ascontiguousarray(total).copy())
