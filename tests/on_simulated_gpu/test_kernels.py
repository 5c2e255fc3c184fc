from __future__ import annotations

import ctypes
from collections.abc import Sequence

import pytest
import torch

import phalanx
from phalanx import ReduceOp
from tests.checks import same
from tests.on_simulated_gpu.launches import Entry, SimulatedGpu
from tests.reference import COMPLEXES, FLOAT8S, FLOATS, HALVES, INTEGERS, ops_of, reduced, values
from tests.run_ranks import run_ranks

# The numbers of core/types.hpp; complex numbers are reduced as their parts.
TYPES = (torch.bool, *INTEGERS, *FLOATS, *COMPLEXES, *FLOAT8S, torch.float8_e8m0fnu)
NARROW = (*HALVES, *FLOAT8S)
PREMUL_SUM = 8
NUMBERS_OF_SOURCES = (1, 2, 3, 4, 5, 8, 9)
COMBINATIONS = [(dtype, op) for dtype in (torch.bool, *INTEGERS, *FLOATS, *FLOAT8S) for op in ops_of(dtype)]
FEW = [(torch.float32, ReduceOp.SUM), (torch.bfloat16, ReduceOp.AVG), (torch.uint8, ReduceOp.BXOR)]


def module_for(gpu: SimulatedGpu, dtype: torch.dtype, op: int) -> ctypes.c_void_p:
    return gpu.module("PHX_REDUCE", f"PHX_TYPE={TYPES.index(dtype)}", f"PHX_OP={int(op)}")


def kernel_for(num_sources: int) -> str:
    return f"reduce_{num_sources}" if num_sources in (2, 4, 8) else "reduce_any"


def addresses(tensors: Sequence[torch.Tensor]) -> list[int]:
    return [tensor.data_ptr() for tensor in tensors]


def name_of(value: object) -> str:
    return value.name if isinstance(value, ReduceOp) else str(value).removeprefix("torch.")


def check_in_place(gpu: SimulatedGpu, module: ctypes.c_void_p, dtype: torch.dtype, op: ReduceOp) -> None:
    """All sources are targets; every alignment that elements can have, alike and not."""
    for num_sources in NUMBERS_OF_SOURCES:
        for count, offsets in ((1, (0,)), (15, (1,)), (1001, (0,)), (1001, (3, 3, 3)), (130, (0, 1, 2, 5))):
            places = [offsets[rank % len(offsets)] * dtype.itemsize for rank in range(num_sources)]
            tensors = [gpu.tensor(values(dtype, count, rank, count), places[rank]) for rank in range(num_sources)]
            expected = reduced(tensors, op)
            entry = Entry(0, count, addresses(tensors), addresses(tensors))
            gpu.run(module, kernel_for(num_sources), [entry], divisor=num_sources)
            for tensor, place in zip(tensors, places, strict=True):
                same(tensor, expected, f"{num_sources} x {count} at {offsets}")
                assert gpu.guards_are_whole(tensor, place)
            gpu.free_all()


def check_sub_ranges(gpu: SimulatedGpu, module: ctypes.c_void_p, dtype: torch.dtype, op: ReduceOp) -> None:
    """Entries of their own ranges, one of them empty, into a tensor beside and into nothing."""
    for num_sources in NUMBERS_OF_SOURCES:
        tensors = [gpu.tensor(values(dtype, 777, rank)) for rank in range(num_sources)]
        target = gpu.tensor(torch.zeros(777, dtype=dtype))
        expected = torch.zeros(777, dtype=dtype)
        ranges = ((3, 300), (300, 300), (301, 777))
        for first, last in ranges:
            expected[first:last] = reduced(tensors, op)[first:last]
        entries = [Entry(first, last, addresses(tensors), [0, target.data_ptr()]) for first, last in ranges]
        gpu.run(module, kernel_for(num_sources), entries, divisor=num_sources, is_spilled=num_sources > 2, num_blocks=1)
        same(target, expected, num_sources)
        gpu.free_all()


@pytest.mark.parametrize(
    ("dtype", "op"),
    [pytest.param(*each, marks=[] if each in FEW else pytest.mark.slow) for each in COMBINATIONS],
    ids=name_of,
)
def test_reduction_gives_the_bits_of_the_host(gpu: SimulatedGpu, dtype: torch.dtype, op: ReduceOp) -> None:
    module = module_for(gpu, dtype, op)
    check_in_place(gpu, module, dtype, op)
    check_sub_ranges(gpu, module, dtype, op)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [*FLOATS, *FLOAT8S], ids=name_of)
def test_premultiplied_sum_gives_the_bits_of_the_host(gpu: SimulatedGpu, dtype: torch.dtype) -> None:
    module = module_for(gpu, dtype, PREMUL_SUM)
    kind = torch.float32 if dtype in NARROW else dtype
    for num_sources in NUMBERS_OF_SOURCES:
        factors = [1 / (3 + rank) for rank in range(num_sources)]
        tensors = [gpu.tensor(values(dtype, 333, rank)) for rank in range(num_sources)]
        scaled = [
            tensor.to(kind) * torch.tensor(factor, dtype=kind) for tensor, factor in zip(tensors, factors, strict=True)
        ]
        expected = reduced(scaled, ReduceOp.SUM).to(dtype)
        entry = Entry(0, 333, addresses(tensors), addresses(tensors), factors)
        gpu.run(module, kernel_for(num_sources), [entry])
        for tensor in tensors:
            same(tensor, expected, num_sources)
        gpu.free_all()


def test_float_sums_are_near_those_of_float64(gpu: SimulatedGpu) -> None:
    module = module_for(gpu, torch.float32, ReduceOp.SUM)
    tensors = [gpu.tensor(values(torch.float32, 20_003, rank)) for rank in range(8)]
    exact = torch.stack(tensors).double().sum(0)
    gpu.run(module, "reduce_8", [Entry(0, 20_003, addresses(tensors), [tensors[5].data_ptr()])], num_blocks=3)
    torch.testing.assert_close(tensors[5].double(), exact, rtol=0, atol=1e-5)


def _all_reduced(tensors: list[torch.Tensor], op: ReduceOp) -> torch.Tensor:
    group = phalanx.connect()
    tensor = tensors[group.rank].clone()
    group.all_reduce(tensor, op)
    return tensor


def awkward_values(dtype: torch.dtype, count: int, rank: int) -> torch.Tensor:
    """Return values of random bits, which include NaNs of both signs, infinities and subnormal numbers."""
    bits = {2: torch.int16, 4: torch.int32, 8: torch.int64}[dtype.itemsize]
    tensor = values(bits, count, rank, 99).view(dtype)
    special = [
        0.0,
        -0.0,
        float("inf"),
        float("-inf"),
        float("nan"),
        -float("nan"),
        torch.finfo(dtype).smallest_normal / 2,
    ]
    order = torch.tensor([(place * (rank + 1)) % len(special) for place in range(count // 2)])
    tensor[: count // 2] = torch.tensor(special, dtype=dtype)[order]
    return tensor


@pytest.mark.slow
@pytest.mark.parametrize("op", [ReduceOp.MIN, ReduceOp.MAX], ids=name_of)
@pytest.mark.parametrize("dtype", FLOATS, ids=name_of)
def test_least_and_greatest_treat_nans_as_the_engine_does(gpu: SimulatedGpu, dtype: torch.dtype, op: ReduceOp) -> None:
    module = module_for(gpu, dtype, op)
    for num_sources in (2, 3, 4):
        inputs = [awkward_values(dtype, 2000, rank) for rank in range(num_sources)]
        expected = run_ranks("thread", num_sources, _all_reduced, inputs, op)[0]
        tensors = [gpu.tensor(tensor) for tensor in inputs]
        gpu.run(module, kernel_for(num_sources), [Entry(0, 2000, addresses(tensors), addresses(tensors))])
        same(tensors[0], expected, num_sources)


@pytest.mark.slow
@pytest.mark.parametrize("op", [ReduceOp.SUM, ReduceOp.PRODUCT, ReduceOp.AVG], ids=name_of)
@pytest.mark.parametrize("dtype", FLOATS, ids=name_of)
def test_arithmetic_rounds_as_the_engine_does(gpu: SimulatedGpu, dtype: torch.dtype, op: ReduceOp) -> None:
    module = module_for(gpu, dtype, op)
    for num_sources in (2, 3):
        inputs = [awkward_values(dtype, 20_000, rank) for rank in range(num_sources)]
        expected = run_ranks("thread", num_sources, _all_reduced, inputs, op)[0]
        tensors = [gpu.tensor(tensor) for tensor in inputs]
        entry = Entry(0, 20_000, addresses(tensors), addresses(tensors))
        gpu.run(module, kernel_for(num_sources), [entry], divisor=num_sources)
        # The bits of a NaN that arithmetic made are the processor's.
        assert torch.equal(tensors[0].isnan(), expected.isnan())
        same(tensors[0].nan_to_num(0), expected.nan_to_num(0), num_sources)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", HALVES, ids=name_of)
def test_every_half_survives_a_sum_with_nothing(gpu: SimulatedGpu, dtype: torch.dtype) -> None:
    module = module_for(gpu, dtype, ReduceOp.SUM)
    every = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype)
    tensor, nothing = gpu.tensor(every), gpu.tensor(torch.full_like(every, -0.0))
    gpu.run(module, "reduce_2", [Entry(0, 2**16, addresses([tensor, nothing]), [nothing.data_ptr()])])
    numbers = ~every.isnan()
    same(nothing[numbers], every[numbers])
    assert nothing[~numbers].isnan().all()


@pytest.mark.slow
@pytest.mark.parametrize("op", [ReduceOp.SUM, ReduceOp.PRODUCT, ReduceOp.AVG, ReduceOp.MIN, ReduceOp.MAX], ids=name_of)
@pytest.mark.parametrize("dtype", FLOAT8S, ids=name_of)
def test_every_pair_of_float8s_gives_the_bits_of_the_host(gpu: SimulatedGpu, dtype: torch.dtype, op: ReduceOp) -> None:
    module = module_for(gpu, dtype, op)
    every = torch.arange(256).to(torch.uint8).view(dtype)
    inputs = [every.repeat_interleave(256), every.repeat(256)]
    expected = run_ranks("thread", 2, _all_reduced, inputs, op)[0]
    tensors = [gpu.tensor(tensor) for tensor in inputs]
    gpu.run(module, "reduce_2", [Entry(0, 2**16, addresses(tensors), addresses(tensors))], divisor=2)
    same(tensors[0], expected)


@pytest.mark.slow
@pytest.mark.parametrize("op", [ReduceOp.MIN, ReduceOp.MAX], ids=name_of)
def test_powers_of_two_are_compared_as_on_the_host(gpu: SimulatedGpu, op: ReduceOp) -> None:
    module = module_for(gpu, torch.float8_e8m0fnu, op)
    every = torch.arange(256).to(torch.uint8).view(torch.float8_e8m0fnu)
    inputs = [every.repeat_interleave(256), every.repeat(256)]
    expected = run_ranks("thread", 2, _all_reduced, inputs, op)[0]
    tensors = [gpu.tensor(tensor) for tensor in inputs]
    gpu.run(module, "reduce_2", [Entry(0, 2**16, addresses(tensors), addresses(tensors))])
    same(tensors[0], expected)
