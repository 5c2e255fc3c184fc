from __future__ import annotations

import pytest
import torch

from phalanx import Group
from tests.checks import same
from tests.contract.sizes import counts_around_limits
from tests.reference import DTYPES, values
from tests.worlds import every_world, worlds


@every_world
def test_gather_fills_the_root_s_list(group: Group) -> None:
    for root in range(group.size):
        for dtype in DTYPES:
            inputs = [values(dtype, (2, 2), rank, root) for rank in range(group.size)]
            outputs = [torch.zeros(2, 2).to(dtype) for _ in inputs] if group.rank == root else None
            assert group.gather(outputs, inputs[group.rank], root) is None
            for rank, output in enumerate(outputs or ()):
                same(output, inputs[rank], (root, dtype, rank))


@every_world
def test_ranks_that_are_not_the_root_may_give_an_empty_list(group: Group) -> None:
    is_root = group.rank == 0
    outputs = [torch.zeros(3) for _ in range(group.size)] if is_root else []
    group.gather(outputs, torch.full((3,), group.rank + 1.0))
    for rank, output in enumerate(outputs):
        same(output, torch.full((3,), rank + 1.0))
    output = torch.zeros(3)
    group.scatter(output, [torch.full((3,), rank + 1.0) for rank in range(group.size)] if is_root else [])
    same(output, torch.full((3,), group.rank + 1.0))


@every_world
@pytest.mark.slow
def test_gather_is_right_around_every_internal_size(group: Group) -> None:
    for count in [*counts_around_limits(4), 1_000_003]:
        root = count % group.size
        inputs = [values(torch.int32, count, rank) for rank in range(group.size)]
        outputs = [torch.zeros(count, dtype=torch.int32) for _ in inputs] if group.rank == root else None
        group.gather(outputs, inputs[group.rank], root)
        for rank, output in enumerate(outputs or ()):
            same(output, inputs[rank], (count, rank))


@every_world
def test_scatter_gives_every_rank_its_own(group: Group) -> None:
    for root in range(group.size):
        for dtype in DTYPES:
            inputs = [values(dtype, (2, 2), rank, root) for rank in range(group.size)]
            output = torch.zeros(2, 2).to(dtype)
            assert group.scatter(output, inputs if group.rank == root else None, root) is None
            same(output, inputs[group.rank], (root, dtype))


@every_world
@pytest.mark.slow
def test_scatter_is_right_around_every_internal_size(group: Group) -> None:
    for count in [*counts_around_limits(4), 1_000_003]:
        root = count % group.size
        inputs = [values(torch.int32, count, rank) for rank in range(group.size)]
        output = torch.zeros(count, dtype=torch.int32)
        group.scatter(output, inputs if group.rank == root else None, root)
        same(output, inputs[group.rank], count)


@every_world
def test_the_root_s_output_may_be_its_own_input(group: Group) -> None:
    for count in (3, 300_000):
        blocks = [torch.full((count,), float(rank)) for rank in range(group.size)]
        output = blocks[0] if group.rank == 0 else torch.zeros(count)
        group.scatter(output, blocks if group.rank == 0 else None)
        same(output, torch.full((count,), float(group.rank)))
        outputs = [output if rank == 0 else torch.zeros(count) for rank in range(group.size)]
        group.gather(outputs if group.rank == 0 else None, output)
        if group.rank == 0:
            same(torch.stack(outputs)[:, 0], torch.arange(float(group.size)))


@worlds(8)
def test_gather_and_scatter_of_eight_ranks(group: Group) -> None:
    for count in (1, 512, 513, 150_000):
        for root in (0, 5):
            is_root = group.rank == root
            outputs = [torch.zeros(count) for _ in range(8)]
            group.gather(outputs if is_root else None, torch.full((count,), float(group.rank)), root)
            back = torch.zeros(count)
            group.scatter(back, outputs if is_root else None, root)
            same(back, torch.full((count,), float(group.rank)), (count, root))
