"""float8 types: widened, added up in float32 and rounded once, with the bits of torch's own conversions."""

from __future__ import annotations

from collections.abc import Callable

import numpy
import pytest
import torch

from phalanx import ReduceOp
from phalanx.groups.shared_memory import SharedMemoryGroup
from tests.checks import same
from tests.reference import FLOAT8S, values
from tests.worlds import worlds

pytestmark = pytest.mark.host_memory("tests/on_simulated_gpu compares the kernels of a GPU with the host's")

ARITHMETIC: dict[ReduceOp, Callable[..., torch.Tensor]] = {
    ReduceOp.SUM: torch.add,
    ReduceOp.AVG: lambda a, b: (a + b) / 2,
    ReduceOp.PRODUCT: torch.mul,
    ReduceOp.MIN: torch.minimum,
    ReduceOp.MAX: torch.maximum,
}


def every(dtype: torch.dtype) -> torch.Tensor:
    return torch.arange(256).to(torch.uint8).view(dtype)


def rounded(value: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Round as torch does; older versions of torch made NaN of what is beyond the largest float8_e4m3fn."""
    return (value.clamp(-448, 448) if dtype is torch.float8_e4m3fn else value).to(dtype)


def check(actual: torch.Tensor, expected: torch.Tensor, what: object) -> None:
    """Compare the bits; those of a NaN that arithmetic made are the processor's."""
    nans = expected.float().isnan()
    assert torch.equal(actual.float().isnan(), nans), what
    same(actual.view(torch.uint8)[~nans], expected.view(torch.uint8)[~nans], what)


@pytest.mark.slow
@worlds(2)
def test_every_pair_of_values_is_reduced_as_torch_would(group: SharedMemoryGroup) -> None:
    for dtype in FLOAT8S:
        pairs = every(dtype).repeat_interleave(256), every(dtype).repeat(256)
        for op, function in ARITHMETIC.items():
            tensor = pairs[group.rank].clone()
            group.all_reduce(tensor, op)
            check(tensor, rounded(function(pairs[0].float(), pairs[1].float()), dtype), (dtype, op))


@pytest.mark.slow
@worlds(2)
def test_every_float32_is_narrowed_as_torch_would(group: SharedMemoryGroup) -> None:
    factors = numpy.random.default_rng(8).uniform(-40, 40, 100)
    for dtype in FLOAT8S:
        for factor in (2.0**factors).astype(numpy.float32):
            tensor = every(dtype).clone() if group.rank == 0 else torch.zeros(256).to(dtype)
            group.all_reduce(tensor, ReduceOp.premul_sum(float(factor) if group.rank == 0 else 0.0))
            check(tensor, rounded(every(dtype).float() * torch.tensor(factor) + 0.0, dtype), (dtype, factor))


@worlds(3)
def test_a_sum_is_rounded_once(group: SharedMemoryGroup) -> None:
    for dtype in FLOAT8S:
        parts = [values(dtype, 5000, rank) for rank in range(group.size)]
        tensor = parts[group.rank].clone()
        group.all_reduce(tensor)
        check(tensor, rounded(parts[0].float() + parts[1].float() + parts[2].float(), dtype), dtype)


@worlds(2)
def test_powers_of_two_are_compared_but_not_added(group: SharedMemoryGroup) -> None:
    dtype = torch.float8_e8m0fnu
    pairs = every(dtype).repeat_interleave(256), every(dtype).repeat(256)
    for op, function in ((ReduceOp.MIN, torch.minimum), (ReduceOp.MAX, torch.maximum)):
        tensor = pairs[group.rank].clone()
        group.all_reduce(tensor, op)
        same(tensor, function(pairs[0].float(), pairs[1].float()).to(dtype), op)
