from __future__ import annotations

from typing import Any

import pytest
import torch

import phalanx
from tests.worlds import every_world, worlds


def _sum_of_ranks(group: Any, world_rank: int) -> float:
    tensor = torch.full((3,), float(world_rank))
    group.all_reduce(tensor)
    return float(tensor[0])


@every_world
def test_a_split_of_all_ranks_is_a_group_like_the_parent(group: Any) -> None:
    part = group.split(range(group.size))
    assert part is not None
    assert (part.rank, part.size, part.ranks) == (group.rank, group.size, tuple(range(group.size)))
    assert _sum_of_ranks(part, group.rank) == sum(range(group.size))


@worlds(3, 4)
def test_members_are_in_ascending_order_whatever_the_list_says(group: Any) -> None:
    part = group.split([2, 0])
    if group.rank == 1:
        assert part is None
    elif group.rank in (0, 2):
        assert (part.rank, part.size, part.ranks) == (0 if group.rank == 0 else 1, 2, (0, 2))
        assert part.name == "world:split:0,2"
        tensor = torch.tensor([group.rank])
        part.broadcast(tensor, 1)
        assert int(tensor) == 2, "roots are ranks of the new group"


@worlds(3, 4)
def test_members_alone_may_make_a_group(group: Any) -> None:
    """The others never call split; they do something else meanwhile."""
    if group.rank in (1, 2):
        part = group.split([1, 2], name="pair", timeout_s=30)
        assert (part.name, part.timeout_s, part.rank) == ("pair", 30.0, group.rank - 1)
        assert _sum_of_ranks(part, group.rank) == 3.0
    group.barrier()


@worlds(4)
def test_groups_that_share_ranks_are_made_without_deadlock(group: Any) -> None:
    """Every rank makes its two groups in its own order, as sub-groups of a mesh are made."""
    row, column = [[0, 1], [2, 3]][group.rank // 2], [[0, 2], [1, 3]][group.rank % 2]
    assert _sum_of_ranks(group.split(row), group.rank) == sum(row)
    assert _sum_of_ranks(group.split(column), group.rank) == sum(column)


@worlds(2, 3)
def test_the_same_split_twice_gives_two_groups(group: Any) -> None:
    first, second = group.split([0, 1]), group.split([0, 1])
    if group.rank > 1:
        return
    assert first.nonce != second.nonce
    first.close()
    assert _sum_of_ranks(second, group.rank) == 1.0


@worlds(4)
def test_groups_can_be_split_again(group: Any) -> None:
    half = group.split([0, 2, 3])
    if half is None:
        return
    pair = half.split([1, 2])
    if group.rank == 0:
        assert pair is None
    else:
        assert (pair.ranks, pair.rank, pair.name) == ((1, 2), half.rank - 1, "world:split:0,2,3:split:1,2")
        assert _sum_of_ranks(pair, group.rank) == 5.0
        alone = pair.split([pair.rank])
        assert (alone.size, _sum_of_ranks(alone, group.rank)) == (1, float(group.rank))


@every_world
def test_a_closed_part_leaves_the_parent_usable(group: Any) -> None:
    part = group.split(range(group.size))
    part.barrier()
    part.close()
    assert _sum_of_ranks(group, group.rank) == sum(range(group.size))
    parent = group.split(range(group.size))
    group.barrier()
    group.close()
    assert _sum_of_ranks(parent, parent.rank) == sum(range(parent.size)), "and a closed parent the part"


@every_world
def test_ranks_outside_the_parent_are_refused(group: Any) -> None:
    n = group.size
    for bad in (n, n + 5, -1):
        with pytest.raises(phalanx.UsageError) as caught:
            group.split([0, bad])
        assert f'group "world": rank {bad} is outside' in str(caught.value)
        assert f"ranks 0 to {n - 1}" in str(caught.value)
    with pytest.raises(phalanx.UsageError, match="a rank occurs twice in"):
        group.split([0, 0])
    with pytest.raises(phalanx.UsageError, match="at least one rank"):
        group.split([])
    assert _sum_of_ranks(group, group.rank) == sum(range(n))


@worlds(4)
def test_colors_make_groups_and_keys_order_them(group: Any) -> None:
    part = group.split_by_color(group.rank % 2, key=-group.rank)
    members = [3, 1] if group.rank % 2 else [2, 0]
    assert part.ranks == tuple(members)
    assert part.rank == members.index(group.rank)
    assert part.name == f"world:color:{group.rank % 2}"
    assert _sum_of_ranks(part, group.rank) == float(sum(members))
    same_key = group.split_by_color(7, name="all")
    assert (same_key.name, same_key.ranks) == ("all", (0, 1, 2, 3)), "equal keys keep the order of ranks"


@every_world
def test_a_rank_without_color_joins_no_group(group: Any) -> None:
    part = group.split_by_color(None if group.rank == 0 else 1)
    if group.rank == 0:
        assert part is None
    else:
        assert part.size == group.size - 1
        part.barrier()


@worlds(8)
def test_eight_ranks_split_into_pairs(group: Any) -> None:
    part = group.split_by_color(group.rank // 2)
    assert _sum_of_ranks(part, group.rank) == [1, 1, 5, 5, 9, 9, 13, 13][group.rank]


@worlds(3)
def test_a_split_names_the_member_that_does_not_come(group: Any) -> None:
    if group.rank != 2:
        with pytest.raises(phalanx.OperationTimeoutError) as caught:
            group.split([0, 1, 2], timeout_s=0.3)
        assert 'split 0,1,2 of group "world"' in str(caught.value)
        assert "timed out after 0.3 s" in str(caught.value)
        assert "rank 2 did not come" in str(caught.value)
    group.barrier()
