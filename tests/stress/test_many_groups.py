"""Very many groups, and very many ranks, on few descriptors."""

from __future__ import annotations

import contextlib
import os
import resource
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import phalanx
from tests import leftovers
from tests.checks import equal
from tests.run_ranks import run_ranks
from tests.stress.amounts import Amount


@contextlib.contextmanager
def _at_most_descriptors(limit: int) -> Iterator[None]:
    """Lower the limit of this process, and with it that of the ranks it starts."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def _limit_self(limit: int) -> None:
    # The process that ranks are forked from may be older than the limit of this test.
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))


def _num_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def _resident_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _open_and_close(limit: int, num_groups: int) -> tuple[int, int]:
    """Return how many descriptors, and how many bytes, this rank has more than after the first groups."""
    _limit_self(limit)
    world: Any = phalanx.connect(timeout_s=60)
    warm_up, tensor, before = 30, torch.empty(8), (0, 0)
    for number in range(warm_up + num_groups):
        if number == warm_up:
            before = _num_descriptors(), _resident_bytes()
        group = world.split(range(world.size))
        group.all_reduce(tensor.fill_(number))
        equal(tensor[0].item(), float(number * world.size))
        group.close()
    return _num_descriptors() - before[0], _resident_bytes() - before[1]


def _keep_open(limit: int, num_groups: int) -> int:
    """Use every group again after all have been made; return how many descriptors they take."""
    _limit_self(limit)
    world: Any = phalanx.connect(timeout_s=60)
    before = _num_descriptors()
    groups = [world.split(range(world.size)) for _ in range(num_groups)]
    tensor = torch.empty(8)
    for number, group in enumerate(groups):
        group.barrier(async_op=True).wait()  # whoever waits long watches the other processes
        group.all_reduce(tensor.fill_(number))
        equal(tensor[0].item(), float(number * world.size))
    return _num_descriptors() - before


def _meet(limit: int) -> float:
    _limit_self(limit)
    world = phalanx.connect(timeout_s=120)
    tensor = torch.ones(5000)
    world.all_reduce(tensor)
    return tensor.sum().item()


@pytest.mark.slow
def test_groups_that_are_closed_take_no_descriptors_and_no_memory(amount: Amount) -> None:
    num_groups = amount(quick=200, whole=10_000)
    for descriptors, grown in run_ranks("process", 8, _open_and_close, 256, num_groups, timeout_s=1200):
        assert descriptors <= 7, "the world watches each peer by one, from the first long wait on"
        assert grown < 8 << 20


@pytest.mark.slow
def test_many_groups_stay_open_on_one_descriptor_each(amount: Amount) -> None:
    num_groups = amount(quick=150, whole=500)
    taken = run_ranks("process", 8, _keep_open, num_groups * 2 + 24, num_groups, timeout_s=600)
    assert max(taken) <= num_groups + 7, "one for each group, one for each peer"


@pytest.mark.slow
def test_very_many_ranks_are_one_group(amount: Amount) -> None:
    num_ranks = amount(quick=48, whole=256)
    before = len(leftovers.open_descriptors())
    with _at_most_descriptors(4096):
        sums = run_ranks("process", num_ranks, _meet, 1024, timeout_s=600)
    assert sums == [5000.0 * num_ranks] * num_ranks
    assert len(leftovers.open_descriptors()) <= before
    assert leftovers.wait_until(lambda: not leftovers.rank_processes())
