from __future__ import annotations

from typing import Any

import pytest
import torch

import phalanx
from phalanx.groups.shared_memory import SharedMemoryGroup
from tests.checks import Stopwatch, same
from tests.worlds import every_world, worlds


def _value_of(rank: int) -> Any:
    """Objects of different kinds and pickled sizes."""
    return [
        {"nested": {"list": [1, (2, 3)], "none": None}},
        "a string",
        list(range(5000)),
        b"\0" * 100_000,
    ][rank % 4]


@every_world
def test_every_rank_gets_every_rank_s_value(group: SharedMemoryGroup) -> None:
    assert group.all_gather_object(_value_of(group.rank)) == [_value_of(rank) for rank in range(group.size)]


@every_world
def test_values_may_hold_tensors(group: SharedMemoryGroup) -> None:
    for rank, (number, tensor) in enumerate(group.all_gather_object((group.rank, torch.full((3, 3), group.rank)))):
        assert number == rank
        same(tensor, torch.full((3, 3), rank))


@every_world
def test_the_root_alone_gathers_values(group: SharedMemoryGroup) -> None:
    for root in range(group.size):
        gathered = group.gather_object(_value_of(group.rank), root)
        expected = [_value_of(rank) for rank in range(group.size)]
        assert gathered == (expected if group.rank == root else None), root


@every_world
def test_the_root_s_value_reaches_everybody(group: SharedMemoryGroup) -> None:
    for root in range(group.size):
        given = _value_of(root) if group.rank == root else None
        assert group.broadcast_object(given, root) == _value_of(root), root
        assert group.broadcast_object(None, root) is None


@every_world
def test_every_rank_gets_its_own_of_the_root_s_values(group: SharedMemoryGroup) -> None:
    for root in range(group.size):
        given = [_value_of(rank) for rank in range(group.size)] if group.rank == root else None
        assert group.scatter_object(given, root) == _value_of(group.rank), root


@worlds(2, 3)
def test_a_root_with_too_few_values_is_refused_everywhere(group: SharedMemoryGroup) -> None:
    if group.rank == 0:
        for given in (None, [1]):
            with pytest.raises(phalanx.UsageError, match=f"must give {group.size} values"):
                group.scatter_object(given)
    else:
        for _ in range(2):
            with pytest.raises(phalanx.PeerFailedError) as caught:
                group.scatter_object()
            assert caught.value.culprits == (0,)
    assert group.broadcast_object("well" if group.rank == 0 else None) == "well", "and the group still works"


@every_world
def test_values_that_cannot_be_pickled_raise_on_every_rank(group: SharedMemoryGroup) -> None:
    unpicklable = [lambda: None]
    for call in (group.all_gather_object, group.gather_object):
        with pytest.raises(AttributeError, match=r"Can't (pickle|get) local object"):
            call(unpicklable)
    assert group.all_gather_object(1) == [1] * group.size, "and the group still works"


@worlds(2, 3)
def test_one_rank_s_unpicklable_value_ends_the_others_at_once(group: SharedMemoryGroup) -> None:
    watch = Stopwatch()
    if group.rank == 1:
        with pytest.raises(AttributeError):
            group.all_gather_object(lambda: None)
        with pytest.raises(AttributeError):
            group.broadcast_object(lambda: None, 1)
    else:
        with pytest.raises(phalanx.PeerFailedError) as caught:
            group.all_gather_object(1)
        assert "rank 1" in str(caught.value)
        assert "local object" in str(caught.value)
        assert caught.value.culprits == (1,)
        with pytest.raises(phalanx.PeerFailedError):
            group.broadcast_object(None, 1)
    assert watch.seconds() < 20
