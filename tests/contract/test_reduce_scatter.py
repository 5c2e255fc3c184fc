from __future__ import annotations

import pytest
import torch

from phalanx import Group, ReduceOp
from tests.checks import same
from tests.contract.sizes import counts_around_limits
from tests.reference import DTYPES, ops_of, reduced, values
from tests.worlds import every_world, worlds


@every_world
def test_reduce_scatter_gives_every_rank_its_block_of_the_reduction(group: Group) -> None:
    for dtype in DTYPES:
        for op in ops_of(dtype):
            inputs = [values(dtype, (group.size, 3), rank) for rank in range(group.size)]
            output = torch.zeros(3).to(dtype)
            assert group.reduce_scatter(output, list(inputs[group.rank]), op) is None
            same(output, reduced([its[group.rank] for its in inputs], op), (dtype, op))


@every_world
def test_reduce_scatter_takes_uneven_sizes(group: Group) -> None:
    for scale in (1, 500, 60_000):
        sizes = [scale * (rank + 1) for rank in range(group.size)]
        blocks = [list(torch.split(values(torch.float32, sum(sizes), rank), sizes)) for rank in range(group.size)]
        output = torch.zeros(sizes[group.rank])
        group.reduce_scatter(output, blocks[group.rank])
        same(output, reduced([its[group.rank] for its in blocks], ReduceOp.SUM), scale)


@every_world
def test_reduce_scatter_takes_ranks_that_get_nothing(group: Group) -> None:
    sizes = [0 if rank % 2 == 0 else 4 for rank in range(group.size)]
    output = torch.zeros(sizes[group.rank])
    group.reduce_scatter(output, [torch.full((size,), group.rank + 1.0) for size in sizes])
    same(output, torch.full((sizes[group.rank],), group.size * (group.size + 1) / 2))


@every_world
def test_reduce_scatter_single_takes_a_flat_or_a_stacked_input(group: Group) -> None:
    count = 6
    flat = torch.arange(group.size * count)
    expected = torch.arange(group.rank * count, (group.rank + 1) * count) * group.size
    for given in (flat, flat.view(group.size, count)):
        output = torch.zeros(count, dtype=torch.int64)
        assert group.reduce_scatter_single(output, given) is None
        same(output, expected)
    same(flat, torch.arange(group.size * count), "the input stays as it was")


@every_world
@pytest.mark.slow
def test_reduce_scatter_is_right_around_every_internal_size(group: Group) -> None:
    for count in counts_around_limits(4):
        inputs = [values(torch.float32, (group.size, count), rank) for rank in range(group.size)]
        output = torch.zeros(count)
        group.reduce_scatter_single(output, inputs[group.rank], ReduceOp.AVG)
        same(output, reduced([its[group.rank] for its in inputs], ReduceOp.AVG), count)


@every_world
def test_the_output_of_reduce_scatter_may_lie_in_its_input(group: Group) -> None:
    for count in (3, 2000, 200_000):
        tensor = torch.full((group.size, count), group.rank + 1.0)
        group.reduce_scatter_single(tensor[group.rank], tensor)
        same(tensor[group.rank], torch.full((count,), group.size * (group.size + 1) / 2), count)


@worlds(8)
def test_reduce_scatter_of_eight_ranks(group: Group) -> None:
    for count in (1, 128, 129, 100_000):
        output = torch.zeros(count)
        group.reduce_scatter_single(output, torch.full((8, count), group.rank + 1.0), ReduceOp.MAX)
        same(output, torch.full((count,), 8.0), count)
