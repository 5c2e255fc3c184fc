from __future__ import annotations

from typing import Any

import torch

import phalanx
from tests.checks import check, contains, equal, raised
from tests.run_ranks import Kind, World, every_kind, every_world, run_ranks, worlds


def _sum_of_ranks(group: Any, world_rank: int) -> float:
    tensor = torch.full((3,), float(world_rank))
    group.all_reduce(tensor)
    return float(tensor[0])


@every_world
def test_a_split_of_all_ranks_is_a_group_like_the_parent(world: World) -> None:
    def program() -> None:
        group: Any = phalanx.connect()
        part = group.split(range(group.size))
        check(part is not None)
        equal((part.rank, part.size, part.ranks), (group.rank, group.size, tuple(range(group.size))))
        equal(_sum_of_ranks(part, group.rank), sum(range(group.size)))

    world.run(program)


@worlds(3, 4)
def test_members_are_in_ascending_order_whatever_the_list_says(world: World) -> None:
    def program() -> None:
        group: Any = phalanx.connect()
        part = group.split([2, 0])
        if group.rank == 1:
            check(part is None)
        elif group.rank in (0, 2):
            equal((part.rank, part.size, part.ranks), (0 if group.rank == 0 else 1, 2, (0, 2)))
            equal(part.name, "world:split:0,2")
            tensor = torch.tensor([group.rank])
            part.broadcast(tensor, 1)
            equal(int(tensor), 2, "roots are ranks of the new group")

    world.run(program)


@worlds(3, 4)
def test_members_alone_may_make_a_group(world: World) -> None:
    """The others never call split; they do something else meanwhile."""

    def program() -> None:
        group: Any = phalanx.connect()
        if group.rank in (1, 2):
            part = group.split([1, 2], name="pair", timeout_s=30)
            equal((part.name, part.timeout_s, part.rank), ("pair", 30.0, group.rank - 1))
            equal(_sum_of_ranks(part, group.rank), 3.0)
        group.barrier()

    world.run(program)


@worlds(4)
def test_groups_that_share_ranks_are_made_without_deadlock(world: World) -> None:
    """Every rank makes its two groups in its own order, as sub-groups of a mesh are made."""

    def program() -> None:
        group: Any = phalanx.connect()
        row, column = [[0, 1], [2, 3]][group.rank // 2], [[0, 2], [1, 3]][group.rank % 2]
        equal(_sum_of_ranks(group.split(row), group.rank), sum(row))
        equal(_sum_of_ranks(group.split(column), group.rank), sum(column))

    world.run(program)


@worlds(2, 3)
def test_the_same_split_twice_gives_two_groups(world: World) -> None:
    def program() -> None:
        group: Any = phalanx.connect()
        first, second = group.split([0, 1]), group.split([0, 1])
        if group.rank > 1:
            return
        check(first.nonce != second.nonce)
        first.close()
        equal(_sum_of_ranks(second, group.rank), 1.0)

    world.run(program)


@worlds(4)
def test_groups_can_be_split_again(world: World) -> None:
    def program() -> None:
        group: Any = phalanx.connect()
        half = group.split([0, 2, 3])
        if half is None:
            return
        pair = half.split([1, 2])
        if group.rank == 0:
            check(pair is None)
        else:
            equal((pair.ranks, pair.rank, pair.name), ((1, 2), half.rank - 1, "world:split:0,2,3:split:1,2"))
            equal(_sum_of_ranks(pair, group.rank), 5.0)
            alone = pair.split([pair.rank])
            equal((alone.size, _sum_of_ranks(alone, group.rank)), (1, float(group.rank)))

    world.run(program)


@every_world
def test_a_closed_part_leaves_the_parent_usable(world: World) -> None:
    def program() -> None:
        group: Any = phalanx.connect()
        part = group.split(range(group.size))
        part.barrier()
        part.close()
        equal(_sum_of_ranks(group, group.rank), sum(range(group.size)))
        parent = group.split(range(group.size))
        group.barrier()
        group.close()
        equal(_sum_of_ranks(parent, parent.rank), sum(range(parent.size)), "and a closed parent the part")

    world.run(program)


@every_world
def test_ranks_outside_the_parent_are_refused(world: World) -> None:
    def program() -> None:
        group: Any = phalanx.connect()
        n = group.size
        for bad in (n, n + 5, -1):
            error = raised(phalanx.UsageError, group.split, [0, bad])
            contains(error, f'group "world": rank {bad} is outside', f"ranks 0 to {n - 1}")
        contains(raised(phalanx.UsageError, group.split, [0, 0]), "name a rank twice")
        contains(raised(phalanx.UsageError, group.split, []), "at least one rank")
        equal(_sum_of_ranks(group, group.rank), sum(range(n)))

    world.run(program)


@worlds(4)
def test_colors_make_groups_and_keys_order_them(world: World) -> None:
    def program() -> None:
        group: Any = phalanx.connect()
        part = group.split_by_color(group.rank % 2, key=-group.rank)
        members = [3, 1] if group.rank % 2 else [2, 0]
        equal(part.ranks, tuple(members))
        equal(part.rank, members.index(group.rank))
        equal(part.name, f"world:color:{group.rank % 2}")
        equal(_sum_of_ranks(part, group.rank), float(sum(members)))
        same_key = group.split_by_color(7, name="all")
        equal((same_key.name, same_key.ranks), ("all", (0, 1, 2, 3)), "equal keys keep the order of ranks")

    world.run(program)


@every_world
def test_a_rank_without_color_joins_no_group(world: World) -> None:
    def program() -> None:
        group: Any = phalanx.connect()
        part = group.split_by_color(None if group.rank == 0 else 1)
        if group.rank == 0:
            check(part is None)
        else:
            equal(part.size, group.size - 1)
            part.barrier()

    world.run(program)


@every_kind
def test_eight_ranks_split_into_pairs(kind: Kind) -> None:
    def program() -> float:
        group: Any = phalanx.connect()
        return _sum_of_ranks(group.split_by_color(group.rank // 2), group.rank)

    assert run_ranks(kind, 8, program) == [1, 1, 5, 5, 9, 9, 13, 13]


@worlds(3)
def test_a_split_names_the_member_that_does_not_come(world: World) -> None:
    def program() -> None:
        group: Any = phalanx.connect()
        if group.rank != 2:
            error = raised(phalanx.OperationTimeoutError, group.split, [0, 1, 2], timeout_s=0.3)
            contains(error, 'split 0,1,2 of group "world"', "timed out after 0.3 s", "ranks [2] did not come")
        group.barrier()

    world.run(program)
