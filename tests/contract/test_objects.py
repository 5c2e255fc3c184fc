from __future__ import annotations

import re
from typing import Any

import torch

import phalanx
from tests.checks import Stopwatch, check, contains, equal, raised, same
from tests.run_ranks import World, every_world, worlds


def _value_of(rank: int) -> Any:
    """Objects of different kinds and pickled sizes."""
    return [
        {"nested": {"list": [1, (2, 3)], "none": None}},
        "a string",
        list(range(5000)),
        b"\0" * 100_000,
    ][rank % 4]


@every_world
def test_every_rank_gets_every_rank_s_value(world: World) -> None:
    def program() -> None:
        group = phalanx.connect()
        equal(group.all_gather_object(_value_of(group.rank)), [_value_of(rank) for rank in range(group.size)])

    world.run(program)


@every_world
def test_values_may_hold_tensors(world: World) -> None:
    def program() -> None:
        group = phalanx.connect()
        for rank, (number, tensor) in enumerate(group.all_gather_object((group.rank, torch.full((3, 3), group.rank)))):
            equal(number, rank)
            same(tensor, torch.full((3, 3), rank))

    world.run(program)


@every_world
def test_the_root_alone_gathers_values(world: World) -> None:
    def program() -> None:
        group = phalanx.connect()
        for root in range(group.size):
            gathered = group.gather_object(_value_of(group.rank), root)
            expected = [_value_of(rank) for rank in range(group.size)]
            equal(gathered, expected if group.rank == root else None, root)

    world.run(program)


@every_world
def test_the_root_s_value_reaches_everybody(world: World) -> None:
    def program() -> None:
        group = phalanx.connect()
        for root in range(group.size):
            given = _value_of(root) if group.rank == root else None
            equal(group.broadcast_object(given, root), _value_of(root), root)
            equal(group.broadcast_object(None, root), None)

    world.run(program)


@every_world
def test_every_rank_gets_its_own_of_the_root_s_values(world: World) -> None:
    def program() -> None:
        group = phalanx.connect()
        for root in range(group.size):
            given = [_value_of(rank) for rank in range(group.size)] if group.rank == root else None
            equal(group.scatter_object(given, root), _value_of(group.rank), root)

    world.run(program)


@worlds(2, 3)
def test_a_root_with_too_few_values_is_refused_everywhere(world: World) -> None:
    def program() -> None:
        group = phalanx.connect(timeout_s=10)
        if group.rank == 0:
            for given in (None, [1]):
                error = raised(phalanx.UsageError, group.scatter_object, given)
                contains(error, f"must give {group.size} values")
        else:
            for _ in range(2):
                equal(raised(phalanx.PeerFailedError, group.scatter_object).culprits, (0,))
        equal(group.broadcast_object("well" if group.rank == 0 else None), "well", "and the group still works")

    world.run(program)


@every_world
def test_values_that_cannot_be_pickled_raise_on_every_rank(world: World) -> None:
    def program() -> None:
        group = phalanx.connect(timeout_s=10)
        unpicklable = [lambda: None]
        for call in (group.all_gather_object, group.gather_object):
            error = raised(AttributeError, call, unpicklable)
            check(re.search("Can't (pickle|get) local object", str(error)), error)
        equal(group.all_gather_object(1), [1] * group.size, "and the group still works")

    world.run(program)


@worlds(2, 3)
def test_one_rank_s_unpicklable_value_ends_the_others_at_once(world: World) -> None:
    def program() -> None:
        group = phalanx.connect(timeout_s=20)
        watch = Stopwatch()
        if group.rank == 1:
            raised(AttributeError, group.all_gather_object, lambda: None)
            raised(AttributeError, group.broadcast_object, lambda: None, 1)
        else:
            error = raised(phalanx.PeerFailedError, group.all_gather_object, 1)
            contains(error, "rank 1", "local object")
            equal(error.culprits, (1,))
            raised(phalanx.PeerFailedError, group.broadcast_object, None, 1)
        check(watch.seconds() < 3, watch.seconds())

    world.run(program)
