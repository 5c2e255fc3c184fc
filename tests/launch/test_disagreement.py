"""Which rank is wrong, from what all ranks know together."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch

import phalanx
from phalanx.diagnosis.sides import find_majority, find_minority, merge_sides, sides_of
from phalanx.launch.disagreement import Disagreement, put_together
from tests.run_ranks import Kind, every_kind, run_ranks


def _told(rank: int, *sides: tuple[int, ...], group: str = "world", num_ranks: int = 4) -> Disagreement:
    return Disagreement(group, 1, num_ranks, rank, sides)


def test_a_side_is_right_with_more_than_half_of_all_ranks_also_of_those_that_have_not_come() -> None:
    sides = sides_of({3: "sum", 0: "max", 1: "sum"})
    assert sides == ((0,), (1, 3))
    assert (find_majority(sides, 4), find_minority(sides, 4)) == ((), ())
    assert (find_majority(sides, 3), find_minority(sides, 3)) == ((1, 3), (0,))


def test_sides_with_a_rank_in_common_are_one() -> None:
    assert merge_sides([((0,), (1,)), ((0,), (1, 2)), ((0,), (3,)), ((2, 3),)]) == ((0,), (1, 2, 3))
    assert merge_sides([]) == ()


def test_late_ranks_decide_who_is_right() -> None:
    known = put_together([_told(0, (0,), (1,)), _told(1, (0,), (1,)), _told(2, (0,), (1, 2)), _told(3, (0,), (1, 3))])
    assert [each is not None and each.is_right for each in known] == [False, True, True, True]
    assert all(each is not None and each.is_decided for each in known)


def test_without_them_it_stays_unknown() -> None:
    known = put_together([_told(0, (0,), (1,)), _told(1, (0,), (1,)), None, _told(3, (0,), (1, 3))])
    assert [each is not None and each.is_decided for each in known] == [False] * 4


def test_groups_are_kept_apart() -> None:
    told = [_told(0, (0,), (1,), group=name, num_ranks=2) for name in ("a", "b")]
    assert put_together(told) == told
    same_name = [_told(0, (0,), (1,)), _told(1, (0,), (1, 2)), _told(0, (0, 3), (1,)), _told(3, (0,), (3,))]
    assert put_together(same_name) == same_name, "two ranks 0: these are two groups"


@every_kind
@pytest.mark.parametrize("odd", [0, 2, 3])
def test_spawn_raises_the_error_of_the_odd_rank_even_if_the_others_come_late(
    kind: Kind, odd: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PHALANX_GRACE_S", "40")

    def program() -> None:
        group: Any = phalanx.connect()
        while group.rank not in (odd, 1) and group.fault() is None:
            time.sleep(0.005)
        if group.rank == odd:
            group.broadcast(torch.ones(4), 1)
        else:
            group.all_reduce(torch.ones(4))

    with pytest.raises(phalanx.MismatchError) as caught:
        run_ranks(kind, 4, program)
    assert caught.value.rank == odd
    assert caught.value.__notes__ == [f"raised on rank {odd} of 4"]
