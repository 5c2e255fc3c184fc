"""Who waits for whom, from literals."""

from __future__ import annotations

import pytest

from phalanx.diagnosis.report import render
from phalanx.diagnosis.waits import (
    MOST_AWAITED,
    Wait,
    describe_cycle,
    find_cycle,
    find_most_waits,
    find_waits,
    world_of,
)
from tests.diagnosis.observations import entry, fault, group, observation, receiving, row, waiting


def _wait(rank: int, *others: int, name: str = "world", is_any: bool = False, is_async: bool = False) -> Wait:
    keys = tuple((800 + other, 0) for other in others)
    return Wait((800 + rank, 0), rank, keys, others, entry(1, "barrier", location="", is_async=is_async), name, is_any)


def test_ranks_in_a_collective_wait_for_all_that_have_not_come() -> None:
    views = [group(waiting(0, 1), row(1), waiting(2, 1), row(3))]
    waits = find_waits(views, world_of(views))
    assert [(wait.rank, wait.waits_for) for wait in waits] == [(0, (1, 3)), (2, (1, 3))]
    assert waits[0].text == "all_reduce #7, me/train.py:61"


@pytest.mark.parametrize("operation", ["broadcast", "reduce", "gather", "scatter"])
def test_in_rooted_operations_only_the_one_slept_for_counts(operation: str) -> None:
    views = [group(row(0), waiting(1, 0, operation=operation), row(2))]
    assert [wait.waits_for for wait in find_waits(views, world_of(views))] == [(0,)]


def test_when_all_have_come_the_one_slept_for_counts() -> None:
    views = [group(waiting(0, 1), row(1, arrived=7, finished=6, entry=entry()))]
    assert [(wait.rank, wait.waits_for) for wait in find_waits(views, world_of(views))] == [(0, (1,))]


def test_a_rank_far_ahead_waits_for_the_slowest() -> None:
    ahead = row(0, arrived=38, finished=38, sleeps_for=1, entry=entry(38))
    views = [group(ahead, row(1))]
    assert [(wait.rank, wait.waits_for) for wait in find_waits(views, world_of(views))] == [(0, (1,))]


def test_nobody_waits_who_is_not_asleep_or_not_there() -> None:
    views = [group(waiting(0, -1), row(1), waiting(2, 1)._replace(state="left"), waiting(3, 1)._replace(state="dead"))]
    assert find_waits(views, world_of(views)) == []


def test_nobody_waits_in_a_broken_group_any_more() -> None:
    views = [group(waiting(0, 1), row(1), fault=fault("timeout"))]
    assert find_waits(views, world_of(views)) == []
    assert len(find_waits(views, world_of(views), also_broken=True)) == 1


def test_messages_name_the_other_side_by_its_number_in_the_world() -> None:
    world = group(row(0), row(1), row(2))
    pair = group(receiving(0, 1, pid=801, tag=5), row(1, pid=802), name="pair")
    views = [world, pair]
    waits = find_waits(views, world_of(views))
    assert [(wait.rank, wait.waits_for, wait.text) for wait in waits] == [
        (1, (2,), "recv from rank 2 tag 5, me/train.py:61")
    ]


def test_a_message_from_anybody_waits_for_one_of_them() -> None:
    views = [group(row(0), receiving(1, -1), row(2))]
    waits = find_waits(views, world_of(views))
    assert [(wait.waits_for, wait.is_any) for wait in waits] == [((0, 2), True)]


def test_the_world_is_numbered_by_the_launcher_or_the_largest_group() -> None:
    pair = group(row(0, pid=803), row(1, pid=801), name="pair")
    world = group(*(row(rank) for rank in range(4)))
    assert world_of([pair, world]) == {(800 + rank, 0): rank for rank in range(4)}
    assert world_of([pair], [801, 802, 803]) == {(801, 0): 0, (802, 0): 1, (803, 0): 2}
    assert world_of([pair], [801]) == {(801, 0): 0, (803, 0): 1}, "the launcher does not know of that one"
    threads = group(*(row(rank, pid=5, is_thread=True, thread=70 + rank) for rank in range(2)))
    assert world_of([threads]) == {(5, 70): 0, (5, 71): 1}
    assert world_of([group(row(0), row(1, pid=0, state="absent"))]) == {(800, 0): 0}


def test_ranks_that_wait_for_each_other_are_a_circle() -> None:
    waits = [_wait(0, 1, 3), _wait(1, 2), _wait(2, 0), _wait(4, 0)]
    cycle = find_cycle(waits)
    assert [wait.rank for wait in cycle] == [0, 1, 2]
    assert describe_cycle(cycle)[2] == 'rank 2 waits for rank 0 in barrier #1, group "world"'


def test_a_circle_need_not_hold_the_first_rank() -> None:
    assert [wait.rank for wait in find_cycle([_wait(0, 1), _wait(1, 2), _wait(2, 1)])] == [1, 2]


@pytest.mark.parametrize(
    "waits",
    [
        [],
        [_wait(0, 1), _wait(1, 2), _wait(2, 3)],
        [_wait(0, 1, 2), _wait(1, 3), _wait(2, 3)],
        [_wait(0, 0)],
        [_wait(0, 1, 2, is_any=True), _wait(1, 0)],
    ],
)
def test_chains_and_messages_from_anybody_are_no_circle(waits: list[Wait]) -> None:
    assert find_cycle(waits) == []


def test_a_sure_circle_is_preferred_to_one_of_asynchronous_operations() -> None:
    waits = [_wait(0, 1, is_async=True), _wait(1, 0), _wait(2, 3), _wait(3, 2)]
    assert [wait.rank for wait in find_cycle(waits)] == [2, 3]
    assert [wait.rank for wait in find_cycle(waits[:2])] == [0, 1]


def test_a_circle_of_a_thousand_ranks_is_found() -> None:
    waits = [_wait(rank, (rank + 1) % 1000) for rank in range(1000)]
    assert len(find_cycle(waits)) == 1000
    assert find_cycle(waits[:-1]) == []


def test_many_who_wait_for_many_take_no_time() -> None:
    views = [group(*(waiting(rank, 300) for rank in range(300)), *(row(rank) for rank in range(300, 400)))]
    assert find_cycle(find_waits(views, world_of(views))) == []


class _Counted(int):
    """A number that counts how often it is compared."""

    num_comparisons = 0

    def __gt__(self, other: int) -> bool:
        _Counted.num_comparisons += 1
        return int(self) > int(other)

    def __lt__(self, other: int) -> bool:
        _Counted.num_comparisons += 1
        return int(self) < int(other)

    def __eq__(self, other: object) -> bool:
        _Counted.num_comparisons += 1
        return isinstance(other, int) and int(self) == int(other)

    __hash__ = int.__hash__


def test_numbering_the_ranks_of_many_groups_compares_each_number_a_few_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_Counted, "num_comparisons", 0)
    views = [
        group(*(row(_Counted(rank), pid=1000 * number + rank) for rank in range(300)), name=f"{number}")
        for number in range(1, 5)
    ]
    assert sorted(world_of(views).values()) == list(range(1200))
    assert _Counted.num_comparisons < 20 * 1200


def test_ranks_of_many_groups_that_wait_for_many_name_a_bounded_number_of_ranks() -> None:
    views = [
        group(*(waiting(rank, 600) if rank < 600 else row(rank) for rank in range(1024)), name=f"{number}")
        for number in range(6)
    ]
    waits, num_left_out = find_most_waits(views, world_of(views))
    assert MOST_AWAITED <= sum(len(wait.keys) for wait in waits) < MOST_AWAITED + 1024
    assert len(waits) + num_left_out == 6 * 600
    assert num_left_out > 0
    assert render(observation(*views)).endswith(
        f"note: {num_left_out} more ranks wait, which is not shown: the others wait for {MOST_AWAITED} ranks already"
    )


def test_all_waits_of_the_largest_group_are_found() -> None:
    views = [group(*(receiving(rank, -1) for rank in range(1024)))]
    waits, num_left_out = find_most_waits(views, world_of(views))
    assert (len(waits), num_left_out) == (1024, 0)


def test_following_a_long_chain_compares_each_rank_a_few_times(monkeypatch: pytest.MonkeyPatch) -> None:
    pids = [_Counted(800 + rank) for rank in range(1000)]
    waits = [
        Wait((pids[rank], 0), rank, ((pids[rank + 1], 0),), (rank + 1,), entry(1, "barrier"), "world")
        for rank in range(999)
    ]
    monkeypatch.setattr(_Counted, "num_comparisons", 0)
    assert find_cycle(waits) == []
    assert _Counted.num_comparisons < 20 * 1000
