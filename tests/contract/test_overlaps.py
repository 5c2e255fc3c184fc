"""Inputs and outputs of one call that share memory: as right in chunks as in one piece."""

from __future__ import annotations

import pytest
import torch

from phalanx.groups.shared_memory import SharedMemoryGroup
from tests.checks import same
from tests.worlds import worlds

SMALL, CHUNKED = 24, 600_000
sizes = pytest.mark.parametrize(
    "size", [SMALL, pytest.param(CHUNKED, marks=pytest.mark.slow)], ids=["small", "chunked"]
)


def _numbers(size: int, rank: int) -> torch.Tensor:
    return (torch.arange(size) % 1000 + 1000 * rank).float()


@sizes
@worlds(2, 3)
def test_an_uneven_all_to_all_in_place_is_right(group: SharedMemoryGroup, size: int) -> None:
    n, me = group.size, group.rank
    counts = [[size // 12 * (1 + (source + 2 * target) % 3) for target in range(n)] for source in range(n)]
    given, got = counts[me], [counts[source][me] for source in range(n)]
    whole = torch.zeros(max(sum(given), sum(got)))
    whole[: sum(given)] = _numbers(sum(given), me)
    expected = torch.cat([
        _numbers(sum(counts[source]), source).split(counts[source])[me] for source in range(n)
    ])  # fmt: skip
    group.all_to_all_single(whole[: sum(got)], whole[: sum(given)], got, given)
    same(whole[: sum(got)], expected)


@sizes
@pytest.mark.parametrize("shift", [0, 1, 5])
@worlds(2, 3)
def test_an_all_gather_over_its_input_is_right(group: SharedMemoryGroup, size: int, shift: int) -> None:
    n, me = group.size, group.rank
    expected = torch.cat([_numbers(size, rank) for rank in range(n)])
    for at in (shift, me * size + shift):
        whole = torch.zeros(n * size + 5)
        given = whole[at : at + size]
        given.copy_(_numbers(size, me))
        group.all_gather_single(whole[: n * size], given)
        same(whole[: n * size], expected, at)
        given.copy_(_numbers(size, me))
        group.all_gather(list(whole[: n * size].split(size)), given)
        same(whole[: n * size], expected, at)


@sizes
@pytest.mark.parametrize("shift", [0, 1, 5])
@worlds(2, 3)
def test_a_reduce_scatter_over_its_input_is_right(group: SharedMemoryGroup, size: int, shift: int) -> None:
    n, me = group.size, group.rank
    total = torch.stack([_numbers(n * size, rank) for rank in range(n)]).sum(0)[me * size : (me + 1) * size]
    for at in (shift, me * size + shift):
        whole = torch.zeros(n * size + 5)
        output = whole[at : at + size]
        whole[: n * size] = _numbers(n * size, me)
        group.reduce_scatter_single(output, whole[: n * size])
        same(output, total, at)
        whole[: n * size] = _numbers(n * size, me)
        group.reduce_scatter(output, list(whole[: n * size].split(size)))
        same(output, total, at)


@sizes
@worlds(2, 3)
def test_a_gather_and_a_scatter_over_their_inputs_are_right(group: SharedMemoryGroup, size: int) -> None:
    n, me = group.size, group.rank
    whole = torch.zeros(n * size + 1)
    given = whole[1 : size + 1]
    given.copy_(_numbers(size, me))
    group.gather(list(whole[: n * size].split(size)) if me == 0 else None, given)
    if me == 0:
        same(whole[: n * size], torch.cat([_numbers(size, rank) for rank in range(n)]))
    whole[: n * size] = _numbers(n * size, 7)
    group.scatter(given, list(whole[: n * size].split(size)) if me == 0 else None)
    same(given, _numbers(n * size, 7)[me * size : (me + 1) * size])


@sizes
@worlds(2, 3)
def test_of_outputs_that_share_memory_the_last_one_wins(group: SharedMemoryGroup, size: int) -> None:
    n = group.size
    once = torch.zeros(size)
    group.all_gather([once] * n, _numbers(size, group.rank))
    same(once, _numbers(size, n - 1))
    group.all_to_all([once] * n, [_numbers(size, group.rank)] * n)
    same(once, _numbers(size, n - 1))


@sizes
@worlds(2, 3)
def test_a_tensor_given_twice_is_reduced_once(group: SharedMemoryGroup, size: int) -> None:
    twice = torch.ones(size)
    group.all_reduce_coalesced([twice, twice])
    same(twice, torch.full((size,), float(group.size)))
