from __future__ import annotations

import pytest
import torch

from phalanx import Group, ReduceOp
from tests.checks import same
from tests.contract.sizes import counts_around_limits
from tests.reference import DTYPES, ops_of, reduced, values
from tests.worlds import every_world


@every_world
def test_reduce_changes_the_root_alone(group: Group) -> None:
    for root in range(group.size):
        for dtype in DTYPES:
            for op in ops_of(dtype):
                inputs = [values(dtype, (3, 2), rank, root) for rank in range(group.size)]
                tensor = inputs[group.rank].clone()
                group.reduce(tensor, root, op)
                expected = reduced(inputs, op) if group.rank == root else inputs[group.rank]
                same(tensor, expected, (root, dtype, op))


@every_world
@pytest.mark.slow
def test_reduce_is_right_around_every_internal_size(group: Group) -> None:
    for count in counts_around_limits(4):
        root = count % group.size
        inputs = [values(torch.float32, count, rank) for rank in range(group.size)]
        tensor = inputs[group.rank].clone()
        group.reduce(tensor, root)
        same(tensor, reduced(inputs, ReduceOp.SUM) if group.rank == root else inputs[group.rank], count)


@every_world
def test_two_reduces_in_a_row_do_not_mix(group: Group) -> None:
    for count in (1, 50_000):
        first, second = torch.full((count,), 1.0), torch.full((count,), 2.0)
        group.reduce(first, 0)
        group.reduce(second, group.size - 1)
        same(first, torch.full((count,), float(group.size) if group.rank == 0 else 1.0))
        is_last = group.rank == group.size - 1
        same(second, torch.full((count,), 2.0 * group.size if is_last else 2.0))


@every_world
def test_reduce_goes_to_rank_zero_unless_told_otherwise(group: Group) -> None:
    tensor = torch.ones(2)
    group.reduce(tensor, op=ReduceOp.premul_sum(2))
    same(tensor, torch.full((2,), 2.0 * group.size if group.rank == 0 else 1.0))
