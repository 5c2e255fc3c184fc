from __future__ import annotations

import pytest
import torch

from phalanx import Group, ReduceOp
from phalanx.engine import available_memory_bytes
from tests.checks import same
from tests.contract.sizes import counts_around_limits
from tests.reference import DTYPES, FLOATS, HALVES, INTEGERS, ops_of, reduced, values
from tests.worlds import every_world, worlds


@every_world
def test_all_reduce_gives_every_rank_the_reduction_of_all_types_and_ops(group: Group) -> None:
    for dtype in DTYPES:
        for op in ops_of(dtype):
            for count in (5, 3000):
                inputs = [values(dtype, count, rank) for rank in range(group.size)]
                tensor = inputs[group.rank].clone()
                assert group.all_reduce(tensor, op) is None
                same(tensor, reduced(inputs, op), f"{op.name} of {count} {dtype}")


@every_world
def test_all_reduce_sums_unless_told_otherwise(group: Group) -> None:
    tensor = torch.ones(10)
    group.all_reduce(tensor)
    same(tensor, torch.full((10,), float(group.size)))


@every_world
@pytest.mark.slow
def test_all_reduce_is_right_around_every_internal_size(group: Group) -> None:
    for dtype in (torch.float32, torch.int8):
        for count in counts_around_limits(dtype.itemsize):
            inputs = [values(dtype, count, rank, count) for rank in range(group.size)]
            tensor = inputs[group.rank].clone()
            group.all_reduce(tensor)
            same(tensor, reduced(inputs, ReduceOp.SUM), f"{count} {dtype}")


@worlds(2, 3, 8)
@pytest.mark.slow
def test_all_reduce_is_right_for_many_chunks(group: Group) -> None:
    for count in (3_000_001, 4_194_304):
        pattern = (torch.arange(count) % 9973).float()
        tensor = pattern + group.rank
        group.all_reduce(tensor)
        same(tensor, pattern * group.size + group.size * (group.size - 1) / 2, count)


@every_world
def test_all_reduce_gives_the_same_bits_every_time_and_everywhere(group: Group) -> None:
    """The values are such that every other order of summation gives other bits."""
    bits = set()
    for count in (1, 700, 200_000):
        for _ in range(3):
            tensor = torch.full((count,), (1e8, 1.0, -1e8, 3.0)[group.rank % 4])
            group.all_reduce(tensor)
            assert (tensor == tensor[0]).all(), count
            bits.add(tensor[:1].cpu().numpy().tobytes())
    assert len(bits) == 1
    assert group.all_gather_object(bits) == [bits] * group.size


@pytest.mark.ranks([2, 3], kind=["process", "thread"])
@pytest.mark.host_memory("only processors can be told to flush denormal numbers")
def test_all_reduce_keeps_denormal_numbers_whatever_a_rank_has_told_its_processor(group: Group) -> None:
    tiny = torch.tensor([1], dtype=torch.int32).view(torch.float32)
    for size in (3, 5000, 300_000):
        torch.set_flush_denormal(group.rank == 1)
        tensor = tiny.expand(size).clone()
        group.all_reduce(tensor)
        torch.set_flush_denormal(False)
        assert torch.equal(tensor.view(torch.int32), torch.full((size,), group.size, dtype=torch.int32))


@every_world
def test_all_reduce_of_truth_values_means_any_or_all(group: Group) -> None:
    first = group.rank == 0
    for op in (ReduceOp.SUM, ReduceOp.MAX, ReduceOp.BOR):
        tensor = torch.tensor([first, False, True])
        group.all_reduce(tensor, op)
        same(tensor, torch.tensor([True, False, True]), op)
    for op in (ReduceOp.PRODUCT, ReduceOp.MIN, ReduceOp.BAND):
        tensor = torch.tensor([first, False, True])
        group.all_reduce(tensor, op)
        same(tensor, torch.tensor([group.size == 1, False, True]), op)
    tensor = torch.tensor([first, False, True])
    group.all_reduce(tensor, ReduceOp.BXOR)
    same(tensor, torch.tensor([True, False, group.size % 2 == 1]))


@every_world
def test_all_reduce_of_small_integers_wraps(group: Group) -> None:
    for dtype in INTEGERS:
        tensor = torch.full((7,), torch.iinfo(dtype).max, dtype=dtype)
        group.all_reduce(tensor)
        bits = dtype.itemsize * 8
        wrapped = torch.iinfo(dtype).max * group.size % 2**bits
        if dtype.is_signed and wrapped >= 2 ** (bits - 1):
            wrapped -= 2**bits
        assert tensor.tolist() == [wrapped] * 7, dtype


@every_world
def test_all_reduce_of_halves_rounds_once(group: Group) -> None:
    """1 + 2**-11 + 2**-11 rounds to 1 in float16 when rounded at each step, and not when rounded at the end."""
    for dtype, tiny in ((torch.float16, 2**-11), (torch.bfloat16, 2**-8)):
        tensor = torch.full((9,), 1.0 if group.rank == 0 else tiny, dtype=dtype)
        group.all_reduce(tensor)
        same(tensor, torch.full((9,), 1 + (group.size - 1) * tiny).to(dtype), dtype)


@every_world
def test_average_sums_first_and_divides_then(group: Group) -> None:
    for dtype in FLOATS:
        tensor = torch.full((5,), float(group.rank + 1), dtype=dtype)
        group.all_reduce(tensor, ReduceOp.AVG)
        same(tensor, torch.full((5,), (group.size + 1) / 2, dtype=dtype), dtype)
    large = torch.full((5,), 3e38)
    group.all_reduce(large, ReduceOp.AVG)
    assert bool(torch.isinf(large).all()) == (group.size > 1), "the sum overflows before it is divided"


@every_world
def test_minimum_and_maximum_of_a_nan_is_nan(group: Group) -> None:
    for dtype in FLOATS:
        for op in (ReduceOp.MIN, ReduceOp.MAX):
            for culprit in range(group.size):
                tensor = torch.full((5,), 1.0, dtype=dtype)
                if group.rank == culprit:
                    tensor[2] = float("nan")
                group.all_reduce(tensor, op)
                assert tensor.isnan().tolist() == [False, False, True, False, False], (dtype, op, culprit)


@every_world
def test_infinities_and_nans_of_halves_survive(group: Group) -> None:
    special = torch.tensor([float("inf"), float("-inf"), float("nan"), 0.0, 65504.0, 6e-8])
    for dtype in HALVES:
        tensor = special.to(dtype) if group.rank == 0 else torch.zeros(6, dtype=dtype)
        group.all_reduce(tensor)
        assert torch.equal(tensor.nan_to_num(-5), special.to(dtype).nan_to_num(-5)), (dtype, tensor)


@every_world
def test_premul_sum_multiplies_each_rank_by_its_own_factor(group: Group) -> None:
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.complex128):
        for count in (3, 5000):
            inputs = [values(dtype, count, rank) for rank in range(group.size)]
            tensor = inputs[group.rank].clone()
            group.all_reduce(tensor, ReduceOp.premul_sum(group.rank + 0.5))
            wide = torch.complex128 if dtype.is_complex else torch.float64
            expected = torch.stack([inputs[rank].to(wide) * (rank + 0.5) for rank in range(group.size)]).sum(0)
            coarse = {torch.float16: 2e-2, torch.bfloat16: 1e-1}.get(dtype, 1e-4)
            assert torch.allclose(tensor.to(wide), expected, rtol=coarse, atol=coarse), (dtype, count)


@every_world
def test_the_values_of_the_upstream_tests(group: Group) -> None:
    """FEATURES.md B4 and B6: a master value on one rank, a worker value elsewhere; for every master."""
    others = group.size - 1
    cases = [
        (ReduceOp.SUM, 2, 10, 2 + 10 * others),
        (ReduceOp.PRODUCT, 2, 10, 2 * 10**others),
        (ReduceOp.MIN, 1010, 1, 1 if others else 1010),
        (ReduceOp.MAX, -1, 10, 10 if others else -1),
    ]
    for master in range(group.size):
        for op, its_value, other_value, expected in cases:
            cube = (master + 1,) * 3
            tensor = torch.full(cube, float(its_value if group.rank == master else other_value))
            group.all_reduce(tensor, op)
            same(tensor, torch.full(cube, float(expected)), (master, op))
        tensor = torch.full((master + 1,) * 3, complex(2, 3) if group.rank == master else complex(10, 11))
        group.all_reduce(tensor)
        same(tensor, torch.full((master + 1,) * 3, complex(2, 3) + complex(10, 11) * others), master)


@worlds(8)
def test_all_reduce_of_eight_ranks(group: Group) -> None:
    for count in (1, 128, 129, 512, 513, 5000, 300_000):
        for op in (ReduceOp.SUM, ReduceOp.MAX):
            inputs = [values(torch.float32, count, rank) for rank in range(group.size)]
            tensor = inputs[group.rank].clone()
            group.all_reduce(tensor, op)
            same(tensor, reduced(inputs, op), (count, op))


@pytest.mark.slow
@pytest.mark.skipif(available_memory_bytes() < 12 << 30, reason="needs 12 GiB of free memory")
@pytest.mark.ranks(2, timeout=200)
def test_all_reduce_of_more_than_four_gibibytes(group: Group) -> None:
    size = (4 << 30) + 5
    tensor = torch.empty(size, dtype=torch.uint8)
    if group.rank == 0:
        for part, value in _parts_with_values(tensor):
            part.fill_(value)
    group.broadcast(tensor)
    assert all(tuple(map(int, part.aminmax())) == (value, value) for part, value in _parts_with_values(tensor))
    group.all_reduce(tensor, ReduceOp.BXOR)
    assert tensor.max() == 0


def _parts_with_values(tensor: torch.Tensor) -> list[tuple[torch.Tensor, int]]:
    """Divide a tensor into parts; no shift by a power of two repeats the pattern of their values."""
    parts = tensor.split(1 << 22)
    values_of_parts = [1 + number * 7 % 251 for number in range(len(parts) - 1)]
    return list(zip(parts, [*values_of_parts, 255], strict=True))
