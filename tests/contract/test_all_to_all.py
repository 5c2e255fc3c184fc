from __future__ import annotations

import os
from typing import Any

import pytest
import torch

import phalanx
from phalanx import Group
from tests.checks import same
from tests.contract.sizes import counts_around_limits
from tests.reference import DTYPES, values
from tests.worlds import every_world, worlds


@every_world
def test_all_to_all_swaps_blocks_of_every_type(group: Group) -> None:
    for dtype in DTYPES:
        given = [[values(dtype, 4, source, target) for target in range(group.size)] for source in range(group.size)]
        outputs = [torch.zeros(4).to(dtype) for _ in range(group.size)]
        assert group.all_to_all(outputs, given[group.rank]) is None
        for source, output in enumerate(outputs):
            same(output, given[source][group.rank], (dtype, source))


@every_world
def test_all_to_all_takes_lists_of_uneven_blocks(group: Group) -> None:
    for scale in (1, 900, 70_000):
        inputs = [torch.full((scale * (target + 1), 2), float(group.rank)) for target in range(group.size)]
        outputs = [torch.full((scale * (group.rank + 1), 2), -1.0) for _ in range(group.size)]
        group.all_to_all(outputs, inputs)
        for source, output in enumerate(outputs):
            same(output, torch.full((scale * (group.rank + 1), 2), float(source)), (scale, source))


@every_world
def test_all_to_all_single_splits_the_first_dimension_equally(group: Group) -> None:
    for rows in (1, 2, 50_000):
        given = torch.full((group.size * rows, 3), float(group.rank))
        output = torch.full_like(given, -1)
        assert group.all_to_all_single(output, given) is None
        same(output, torch.arange(float(group.size)).repeat_interleave(rows * 3).view_as(given), rows)


@every_world
def test_all_to_all_single_takes_split_sizes(group: Group) -> None:
    for dtype in (torch.float32, torch.complex64):
        input_splits = [target + 1 for target in range(group.size)]
        output_splits = [group.rank + 1] * group.size
        given = torch.full((sum(input_splits), 4), group.rank).to(dtype)
        output = torch.full((sum(output_splits), 4), -1).to(dtype)
        group.all_to_all_single(output, given, output_splits, input_splits)
        for source, block in enumerate(torch.split(output, output_splits)):
            same(block, torch.full((group.rank + 1, 4), source).to(dtype), source)


@every_world
def test_all_to_all_takes_splits_of_nothing(group: Group) -> None:
    """Everything goes to the last rank, in very different amounts."""
    last = group.size - 1
    amounts = [10 ** min(rank + 2, 6) for rank in range(group.size)]
    input_splits = [0] * last + [amounts[group.rank]]
    output_splits = amounts if group.rank == last else [0] * group.size
    output = torch.full((sum(output_splits),), -1.0)
    given = torch.full((sum(input_splits),), float(group.rank))
    group.all_to_all_single(output, given, output_splits, input_splits)
    for source, block in enumerate(torch.split(output, output_splits)):
        same(block, torch.full((output_splits[source],), float(source)), source)


@every_world
@pytest.mark.slow
def test_all_to_all_is_right_around_every_internal_size(group: Group) -> None:
    for count in [*counts_around_limits(4), 700_001]:
        given = [values(torch.int32, (group.size, count), source) for source in range(group.size)]
        output = torch.zeros(group.size, count, dtype=torch.int32)
        group.all_to_all_single(output, given[group.rank])
        same(output, torch.stack([its[group.rank] for its in given]), count)


@worlds(8)
def test_all_to_all_of_eight_ranks(group: Group) -> None:
    for count in (1, 1000, 30_000):
        given = torch.arange(8).repeat_interleave(count).view(8, count) + group.rank * 10
        output = torch.zeros_like(given)
        group.all_to_all_single(output, given)
        same(output[:, 0], torch.arange(8) * 10 + group.rank, count)
        same(output, output[:, :1].expand(8, count), count)


@worlds(3)
def test_split_sizes_whose_sum_wraps_round_are_refused(group: Group) -> None:
    most = 2**63 - 1
    sizes = [[most, most, 8], [most, 8, most], [8, most, most]][group.rank]  # they add up to 6, but for 2**64
    with pytest.raises(phalanx.UsageError, match="the tensor has 6 rows"):
        group.all_to_all_single(torch.zeros(6), torch.ones(6), sizes, sizes)
    group.barrier()


@worlds(2)
def test_peers_are_told_when_split_sizes_are_no_list(group: Group) -> None:
    splits: Any = 5 if group.rank == 0 else None
    error, told = (TypeError, "has no len") if group.rank == 0 else (phalanx.PeerFailedError, "rank 0 .* refused")
    with pytest.raises(error, match=told):
        group.all_to_all_single(torch.zeros(4), torch.ones(4), splits)
    group.barrier()


@worlds(2)
def test_peers_are_told_of_an_error_about_a_file_whose_name_is_no_text(group: Group) -> None:
    class Splits:
        def __len__(self) -> int:
            raise OSError(os.fsdecode(b"data-\xff"))

    splits: Any = Splits() if group.rank == 0 else None
    error, told = (OSError, "data-") if group.rank == 0 else (phalanx.PeerFailedError, r"OSError: data-\\udcff")
    with pytest.raises(error, match=told):
        group.all_to_all_single(torch.zeros(4), torch.ones(4), splits)
    group.barrier()
