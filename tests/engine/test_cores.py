"""Cores that ranks have together."""

from __future__ import annotations

import os

import pytest

from phalanx.engine import ControlGroups, count_cores, own_affinity, usable_cores


def test_ranks_that_may_run_anywhere_share_the_cores_of_one_of_them() -> None:
    assert count_cores([own_affinity()] * 4, crowd=4) == usable_cores()


@pytest.mark.parametrize(
    ("affinities", "crowd", "cores"),
    [
        (["1", "2", "4", "8"], 4, 4),  # pinned one by one
        (["1", "1", "2", "2"], 4, 2),  # two on each core
        (["3", "3", "c", "c"], 4, 4),  # pinned to sockets
        (["1", "2"], 4, 4),  # some of four that are pinned one by one
        (["f", "f"], 8, 4),  # some of eight on four cores
        (["1"], 1, 1),
    ],
)
def test_pinned_ranks_have_the_cores_of_all_of_them(affinities: list[str], crowd: int, cores: int) -> None:
    if (ControlGroups().cores() or cores) < cores:
        pytest.skip("the control group of this process grants fewer cores")
    assert count_cores(affinities, crowd) == cores


def test_an_affinity_is_a_mask() -> None:
    assert int(own_affinity(), 16).bit_count() == len(os.sched_getaffinity(0))
