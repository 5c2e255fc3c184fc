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


# The ranks of each host, if the group that is tested is on several: docs/numerics.md says what that means for sums.
HOSTS: list[Sequence[int]] = []


def reduced(tensors: Sequence[torch.Tensor], op: ReduceOp) -> torch.Tensor:
    """Reduce in rank order, in host memory: the order is fixed, so the bits are."""
    dtype, shape, num_ranks = tensors[0].dtype, tensors[0].shape, len(tensors)
    flat = [tensor.cpu().contiguous().reshape(-1) for tensor in tensors]
    if len(HOSTS) < 2 or sum(map(len, HOSTS)) != num_ranks:
        return _combine(flat, op, num_ranks).to(dtype).view(shape)
    parts = [[flat[rank] for rank in ranks] for ranks in HOSTS]
    if op is ReduceOp.AVG and dtype in (torch.float16, *FLOAT8S):  # sums of few ranks may overflow
        averages = [_combine(part, op, len(part)).to(dtype).float() * (len(part) / num_ranks) for part in parts]
        return _fold(averages, ReduceOp.SUM).to(dtype).view(shape)
    inside = ReduceOp.SUM if op is ReduceOp.AVG else op
    sums = [_combine(part, inside, num_ranks).to(dtype) for part in parts]
    return _combine(sums, op, num_ranks).to(dtype).view(shape)


def _combine(tensors: Sequence[torch.Tensor], op: ReduceOp, num_ranks: int) -> torch.Tensor:
    """Reduce, and divide an average; halves and smaller types as float32."""
    is_small = tensors[0].dtype in (*HALVES, *FLOAT8S)
    total = _fold([tensor.float() for tensor in tensors] if is_small else tensors, op)
    if op is not ReduceOp.AVG:
        return total
    parts = (torch.view_as_real(total) if total.is_complex() else total).numpy()
    with numpy.errstate(all="ignore"):
        average = torch.from_numpy(parts / parts.dtype.type(num_ranks))
    return torch.view_as_complex(average) if total.is_complex() else average


def _fold(tensors: Sequence[torch.Tensor], op: ReduceOp) -> torch.Tensor:
    ufunc = (_BOOL_UFUNCS if tensors[0].dtype is torch.bool else _UFUNCS)[op]
    with numpy.errstate(all="ignore"):
        total: Any = reduce(ufunc, [tensor.numpy() for tensor in tensors])
    return torch.from_numpy(numpy.ascontiguousarray(total).copy())
