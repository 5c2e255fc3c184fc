from __future__ import annotations

import threading
from datetime import timedelta
from typing import Any

import torch

import phalanx
from tests.checks import check, contains, equal, raised, same
from tests.run_ranks import Kind, World, every_kind, every_world, run_ranks


@every_world
def test_a_group_knows_its_ranks_size_and_name(world: World) -> None:
    def program(size: int) -> int:
        group = phalanx.connect()
        equal(group.name, "world")
        equal(group.ranks, tuple(range(group.size)))
        check(not group.is_closed)
        equal(repr(group), f'<SharedMemoryGroup "world" rank {group.rank} of {group.size}>')
        equal(group.size, size)
        return group.rank

    assert world.run(program, world.ranks) == list(range(world.ranks))


@every_world
def test_a_group_is_what_the_protocol_says(world: World) -> None:
    def program() -> None:
        group = phalanx.connect()
        protocol = [name for name in vars(phalanx.Group) if not name.startswith("_")]
        equal([name for name in protocol if not hasattr(group, name)], [])
        work = group.barrier(async_op=True)
        check(isinstance(work, phalanx.Work))
        work.wait()

    world.run(program)


@every_kind
def test_timeouts_are_seconds_or_timedeltas(kind: Kind) -> None:
    def program() -> None:
        group = phalanx.connect(timeout_s=timedelta(minutes=2))
        equal(group.timeout_s, 120.0)
        group.set_timeout(timedelta(seconds=1.5))
        equal(group.timeout_s, 1.5)
        group.set_timeout(3)
        equal(group.timeout_s, 3.0)
        group.barrier(timeout_s=timedelta(seconds=20))
        for bad in (0, -1, timedelta(0), float("nan")):
            contains(raised(phalanx.UsageError, group.set_timeout, bad), "give a positive number")
        part = group.split([group.rank], timeout_s=timedelta(seconds=7))
        equal(part and part.timeout_s, 7.0)

    run_ranks(kind, 1, program)


@every_world
def test_every_connect_makes_another_group(world: World) -> None:
    def program() -> None:
        first, second = phalanx.connect(), phalanx.connect()
        third = phalanx.connect(name="other")
        equal([first.name, second.name, third.name], ["world", "world", "other"])
        check(len({first.nonce, second.nonce, third.nonce}) == 3)
        equal([second.rank, third.rank, second.size, third.size], [first.rank] * 2 + [first.size] * 2)
        second.close()
        tensor = torch.ones(2)
        first.all_reduce(tensor)
        same(tensor, torch.full((2,), float(first.size)), "closing one group leaves the others alone")

    world.run(program)


@every_world
def test_collectives_of_several_groups_may_come_in_different_orders(world: World) -> None:
    def program() -> None:
        groups = [phalanx.connect() for _ in range(3)]
        rank = groups[0].rank
        tensors = [torch.full((5,), 10.0**number) for number in range(3)]
        order = [(number + rank) % 3 for number in range(3)]
        works: list[Any] = [groups[number].all_reduce(tensors[number], async_op=True) for number in order]
        for work in works:
            work.wait()
        for number, tensor in enumerate(tensors):
            same(tensor, torch.full((5,), groups[0].size * 10.0**number))

    world.run(program)


@every_kind
def test_several_worlds_live_side_by_side(kind: Kind) -> None:
    """Three spawns at once from three threads; none may hear of another."""

    def program(number: int) -> float:
        group = phalanx.connect()
        tensor = torch.full((4,), float(number))
        for _ in range(20):
            tensor.fill_(float(number))
            group.all_reduce(tensor)
        return float(tensor[0])

    results: dict[int, list[float]] = {}

    def start(number: int) -> None:
        results[number] = run_ranks(kind, number + 1, program, number)

    threads = [threading.Thread(target=start, args=(number,)) for number in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert results == {1: [2.0, 2.0], 2: [6.0, 6.0, 6.0]}


@every_world
def test_no_group_is_current_unless_one_was_entered(world: World) -> None:
    def program() -> None:
        first, second = phalanx.connect(), phalanx.connect()
        check(phalanx.current_group() is None)
        with first as entered:
            check(entered is first)
            check(phalanx.current_group() is first)
            with second:
                check(phalanx.current_group() is second)
            check(phalanx.current_group() is first)
            with first:
                check(phalanx.current_group() is first)
            check(phalanx.current_group() is first)
        check(phalanx.current_group() is None)
        check(not first.is_closed, "leaving the block does not close the group")

    world.run(program)


@every_kind
def test_the_current_group_is_restored_after_an_exception(kind: Kind) -> None:
    def program() -> None:
        first, second = phalanx.connect(), phalanx.connect()
        with first:
            try:
                with second:
                    raise KeyError("on purpose")
            except KeyError:
                check(phalanx.current_group() is first)
        check(phalanx.current_group() is None)

    run_ranks(kind, 1, program)


@every_kind
def test_every_thread_has_a_current_group_of_its_own(kind: Kind) -> None:
    def program() -> None:
        group = phalanx.connect()
        seen: list[Any] = []
        with group:
            thread = threading.Thread(target=lambda: seen.append(phalanx.current_group()))
            thread.start()
            thread.join(10)
        equal(seen, [None])

    run_ranks(kind, 2, program)
