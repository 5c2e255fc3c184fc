from __future__ import annotations

import threading
from datetime import timedelta
from typing import Any

import pytest
import torch

import phalanx
from phalanx.groups.shared_memory import SharedMemoryGroup
from tests.checks import same
from tests.run_ranks import Kind, every_kind, run_ranks
from tests.worlds import every_world, worlds


@every_world
def test_a_group_knows_its_ranks_size_and_name(group: SharedMemoryGroup, rank: int, world_size: int) -> None:
    assert group.name == "world"
    assert (group.rank, group.size) == (rank, world_size)
    assert group.ranks == tuple(range(world_size))
    assert not group.is_closed
    assert repr(group) == f'<SharedMemoryGroup "world" rank {rank} of {world_size}>'
    assert group.all_gather_object(group.rank) == list(range(world_size))


@every_world
def test_a_group_is_what_the_protocol_says(group: SharedMemoryGroup) -> None:
    protocol = [name for name in vars(phalanx.Group) if not name.startswith("_")]
    assert [name for name in protocol if not hasattr(group, name)] == []
    work = group.barrier(async_op=True)
    assert isinstance(work, phalanx.Work)
    work.wait()


@worlds(1)
def test_timeouts_are_seconds_or_timedeltas() -> None:
    group = phalanx.connect(timeout_s=timedelta(minutes=2))
    assert group.timeout_s == 120.0
    group.set_timeout(timedelta(seconds=1.5))
    assert group.timeout_s == 1.5
    group.set_timeout(3)
    assert group.timeout_s == 3.0
    group.barrier(timeout_s=timedelta(seconds=20))
    for bad in (0, -1, timedelta(0), float("nan")):
        with pytest.raises(phalanx.UsageError, match="give a positive number"):
            group.set_timeout(bad)
    part = group.split([group.rank], timeout_s=timedelta(seconds=7))
    assert (part and part.timeout_s) == 7.0


@every_world
def test_every_connect_makes_another_group() -> None:
    first, second = phalanx.connect(), phalanx.connect()
    third = phalanx.connect(name="other")
    nonces = {group.nonce for group in (first, second, third) if isinstance(group, SharedMemoryGroup)}
    assert [first.name, second.name, third.name] == ["world", "world", "other"]
    assert len(nonces) == 3
    assert [second.rank, third.rank, second.size, third.size] == [first.rank] * 2 + [first.size] * 2
    second.close()
    tensor = torch.ones(2)
    first.all_reduce(tensor)
    same(tensor, torch.full((2,), float(first.size)), "closing one group leaves the others alone")


@every_world
def test_collectives_of_several_groups_may_come_in_different_orders() -> None:
    groups = [phalanx.connect() for _ in range(3)]
    rank = groups[0].rank
    tensors = [torch.full((5,), 10.0**number) for number in range(3)]
    order = [(number + rank) % 3 for number in range(3)]
    works: list[Any] = [groups[number].all_reduce(tensors[number], async_op=True) for number in order]
    for work in works:
        work.wait()
    for number, tensor in enumerate(tensors):
        same(tensor, torch.full((5,), groups[0].size * 10.0**number))


@pytest.mark.host_memory("starts ranks of its own")
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
def test_no_group_is_current_unless_one_was_entered() -> None:
    first, second = phalanx.connect(), phalanx.connect()
    assert phalanx.current_group() is None
    with first as entered:
        assert entered is first
        assert phalanx.current_group() is first
        with second:
            assert phalanx.current_group() is second
        assert phalanx.current_group() is first
        with first:
            assert phalanx.current_group() is first
        assert phalanx.current_group() is first
    assert phalanx.current_group() is None
    assert not first.is_closed, "leaving the block does not close the group"


@worlds(1)
def test_the_current_group_is_restored_after_an_exception() -> None:
    first, second = phalanx.connect(), phalanx.connect()
    with first:
        with pytest.raises(KeyError, match="on purpose"), second:
            raise KeyError("on purpose")
        assert phalanx.current_group() is first
    assert phalanx.current_group() is None


@worlds(2)
def test_every_thread_has_a_current_group_of_its_own(group: SharedMemoryGroup) -> None:
    seen: list[Any] = []
    with group:
        thread = threading.Thread(target=lambda: seen.append(phalanx.current_group()))
        thread.start()
        thread.join(10)
    assert seen == [None]
