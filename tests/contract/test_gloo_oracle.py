"""The same inputs through torch's own engine and through phalanx must give the same outputs."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist

import phalanx
from phalanx import ReduceOp
from tests.checks import same
from tests.reference import values

# What Gloo can do; its order of summation is its own, so values are small whole numbers.
GLOO_DTYPES = (torch.int8, torch.uint8, torch.int32, torch.int64, torch.float16, torch.float32, torch.float64)
GLOO_OPS = {
    ReduceOp.SUM: dist.ReduceOp.SUM,
    ReduceOp.PRODUCT: dist.ReduceOp.PRODUCT,
    ReduceOp.MIN: dist.ReduceOp.MIN,
    ReduceOp.MAX: dist.ReduceOp.MAX,
}
SIZES = (1, 7, 1000, 5000, 150_001)

pytestmark = [
    pytest.mark.host_memory("Gloo is compared in host memory"),
    pytest.mark.slow,
    pytest.mark.ranks([2, 3], backend="gloo", timeout=100),
    pytest.mark.usefixtures("process_group"),
]


def _numbers(dtype: torch.dtype, size: int, *seed: int) -> torch.Tensor:
    return (values(torch.uint8, size, *seed) % 4 + 1).to(dtype)


def test_gloo_reduces_alike() -> None:
    group = phalanx.connect()
    for dtype in GLOO_DTYPES:
        for op, gloo_op in GLOO_OPS.items():
            for size in SIZES[:4]:
                ours, theirs = _numbers(dtype, size, group.rank), _numbers(dtype, size, group.rank)
                group.all_reduce(ours, op)
                dist.all_reduce(theirs, gloo_op)
                same(ours, theirs, ("all_reduce", dtype, op, size))
                ours, theirs = _numbers(dtype, size, group.rank), _numbers(dtype, size, group.rank)
                group.reduce(ours, group.size - 1, op)
                dist.reduce(theirs, group.size - 1, gloo_op)
                if group.rank == group.size - 1:
                    same(ours, theirs, ("reduce", dtype, op, size))


def test_gloo_moves_tensors_alike() -> None:
    group = phalanx.connect()
    n, me = group.size, group.rank
    for dtype in GLOO_DTYPES:
        for size in SIZES:
            given = _numbers(dtype, size, me)
            ours, theirs = given.clone(), given.clone()
            group.broadcast(ours, n - 1)
            dist.broadcast(theirs, n - 1)
            same(ours, theirs, ("broadcast", dtype, size))
            ours_list = [torch.zeros_like(given) for _ in range(n)]
            theirs_list = [torch.zeros_like(given) for _ in range(n)]
            group.all_gather(ours_list, given)
            dist.all_gather(theirs_list, given)
            same(torch.stack(ours_list), torch.stack(theirs_list), ("all_gather", dtype, size))
            blocks = [_numbers(dtype, size, me, rank) for rank in range(n)]
            group.gather(ours_list if me == 0 else None, blocks[0])
            dist.gather(blocks[0], theirs_list if me == 0 else None)
            same(torch.stack(ours_list), torch.stack(theirs_list), ("gather", dtype, size))
            group.scatter(ours, blocks if me == 0 else None)
            dist.scatter(theirs, blocks if me == 0 else None)
            same(ours, theirs, ("scatter", dtype, size))
            group.reduce_scatter(ours, blocks)
            dist.reduce_scatter(theirs, blocks)
            same(ours, theirs, ("reduce_scatter", dtype, size))


def test_gloo_swaps_blocks_alike() -> None:
    group = phalanx.connect()
    n, me = group.size, group.rank
    for scale in (1, 40, 9000):
        sizes = [[(source + 2 * target) % 4 * scale for target in range(n)] for source in range(n)]
        input_splits, output_splits = sizes[me], [sizes[source][me] for source in range(n)]
        given = _numbers(torch.float32, sum(input_splits), me)
        ours, theirs = torch.zeros(sum(output_splits)), torch.zeros(sum(output_splits))
        group.all_to_all_single(ours, given, output_splits, input_splits)
        dist.all_to_all_single(theirs, given, output_splits, input_splits)
        same(ours, theirs, scale)
