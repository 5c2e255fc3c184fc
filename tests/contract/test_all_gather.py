from __future__ import annotations

import pytest
import torch

from phalanx import Group
from tests.checks import same
from tests.contract.sizes import counts_around_limits
from tests.reference import DTYPES, values
from tests.worlds import every_world, worlds


@every_world
def test_all_gather_fills_a_list_with_every_rank_s_tensor(group: Group) -> None:
    for dtype in DTYPES:
        inputs = [values(dtype, (2, 3), rank) for rank in range(group.size)]
        own = inputs[group.rank].clone()
        outputs = [torch.zeros(2, 3).to(dtype) for _ in range(group.size)]
        assert group.all_gather(outputs, own) is None
        same(own, inputs[group.rank], "the input stays as it was")
        for rank, output in enumerate(outputs):
            same(output, inputs[rank], (dtype, rank))


@every_world
def test_all_gather_takes_uneven_sizes(group: Group) -> None:
    for scale in (0, 1, 700, 90_000):
        sizes = [scale * (rank + 1) for rank in range(group.size)]
        whole = torch.full((sum(sizes), 2), -1.0)
        outputs = list(torch.split(whole, sizes))
        group.all_gather(outputs, values(torch.float32, (sizes[group.rank], 2), group.rank))
        expected = [values(torch.float32, (size, 2), rank) for rank, size in enumerate(sizes)]
        same(whole, torch.cat(expected), scale)
        assert len(outputs) == group.size


@every_world
def test_all_gather_takes_ranks_that_give_nothing(group: Group) -> None:
    sizes = [0 if rank % 2 == 0 else 5 for rank in range(group.size)]
    outputs = [torch.zeros(size) for size in sizes]
    group.all_gather(outputs, torch.full((sizes[group.rank],), float(group.rank)))
    for rank, size in enumerate(sizes):
        same(outputs[rank], torch.full((size,), float(rank)))


@every_world
def test_all_gather_single_concatenates_or_stacks(group: Group) -> None:
    for dtype in DTYPES:
        inputs = [values(dtype, (3, 2), rank) for rank in range(group.size)]
        joined = torch.zeros(group.size * 3, 2).to(dtype)
        assert group.all_gather_single(joined, inputs[group.rank]) is None
        same(joined, torch.cat(inputs), dtype)
        stacked = torch.zeros(group.size, 3, 2).to(dtype)
        group.all_gather_single(stacked, inputs[group.rank])
        same(stacked, torch.stack(inputs), dtype)


@every_world
@pytest.mark.slow
def test_all_gather_is_right_around_every_internal_size(group: Group) -> None:
    for count in [*counts_around_limits(2), 1_500_001]:
        inputs = [values(torch.int16, count, rank) for rank in range(group.size)]
        output = torch.zeros(group.size * count, dtype=torch.int16)
        group.all_gather_single(output, inputs[group.rank])
        same(output, torch.cat(inputs), count)


@every_world
def test_the_input_of_all_gather_may_lie_in_its_output(group: Group) -> None:
    for count in (3, 2000, 200_000):
        output = torch.full((group.size, count), -1.0)
        output[group.rank] = float(group.rank)
        group.all_gather_single(output, output[group.rank])
        same(output, torch.arange(float(group.size)).repeat_interleave(count).view(group.size, count), count)


@worlds(8)
def test_all_gather_of_eight_ranks(group: Group) -> None:
    for count in (1, 1024, 1025, 200_000):
        output = torch.zeros(group.size, count)
        group.all_gather_single(output, torch.full((count,), float(group.rank)))
        same(output, torch.arange(8.0).repeat_interleave(count).view(8, count), count)
