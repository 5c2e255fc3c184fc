"""Long runs do not grow."""

from __future__ import annotations

import gc
import os
from pathlib import Path
from typing import Any

import pytest
import torch

import phalanx
from phalanx.groups.shared_memory import SharedMemoryGroup

MIB = 1 << 20


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _use(group: Any, rounds: int) -> None:
    """Ten collectives a round."""
    small, large = torch.ones(10), torch.ones(20_000)
    outputs = torch.ones(group.size, 10)
    peer = (group.rank + 1) % group.size
    for number in range(rounds):
        for _ in range(3):
            group.all_reduce(small)
        group.broadcast(small, number % group.size)
        group.all_gather_single(outputs, small)
        group.barrier()
        works = [group.all_reduce(small, async_op=True), group.barrier(async_op=True)]
        works[1].wait()
        group.all_reduce(small)
        if number % 50 == 0:
            group.all_reduce(large)
            group.all_gather_object({"number": number})
            work = group.recv(large, async_op=True)
            group.send(large, peer)
            work.wait()
        else:
            group.reduce_scatter_single(small, outputs)
        small.fill_(1)


def _growth_of_use(group: Any) -> int:
    before = _resident_bytes()
    _use(group, 10_000)
    gc.collect()
    group.barrier()
    return _resident_bytes() - before


@pytest.mark.slow
@pytest.mark.ranks(2, kind=["process", "thread"], timeout=200)
def test_a_hundred_thousand_collectives_do_not_grow(group: SharedMemoryGroup) -> None:
    _use(group, 4000)  # until every page of the buffers was touched, which operations go round in
    gc.collect()
    group.barrier()
    segment = group.size_bytes
    # What leaks, leaks each time. malloc takes some memory once more when threads come in another order, and keeps it.
    growths: list[int] = []
    while len(growths) < 3 and (not growths or growths[-1] >= 4 * MIB):
        growths.append(max(group.all_gather_object(_growth_of_use(group))))
    assert group.size_bytes == segment
    assert growths[-1] < 4 * MIB, growths


@pytest.mark.slow
@pytest.mark.ranks(2)
def test_failed_calls_do_not_grow(group: SharedMemoryGroup) -> None:
    def fail(times: int) -> None:
        for _ in range(times):
            try:
                group.all_reduce(torch.ones(2, device="meta") if group.rank == 1 else torch.ones(2))
            except (phalanx.UsageError, phalanx.PeerFailedError):
                continue

    fail(500)
    before = _resident_bytes()
    fail(3000)
    group.barrier()
    assert _resident_bytes() - before < 4 * MIB


@pytest.mark.slow
@pytest.mark.ranks(2)
def test_groups_that_come_and_go_do_not_grow(group: Any) -> None:
    def regroup(times: int) -> None:
        for _ in range(times):
            part = group.split([0, 1])
            part.all_reduce(torch.ones(10_000))
            part.all_reduce(part.empty(10_000))
            part.close()

    regroup(20)
    gc.collect()
    before, descriptors = _resident_bytes(), len(os.listdir("/proc/self/fd"))
    regroup(150)
    gc.collect()
    assert _resident_bytes() - before < 8 * MIB
    assert len(os.listdir("/proc/self/fd")) == descriptors


@pytest.mark.ranks(8, kind="thread")
def test_the_memory_of_a_group_is_bounded(group: SharedMemoryGroup) -> None:
    before = group.size_bytes
    assert before <= 64 * MIB
    group.all_reduce(torch.ones(8 * MIB))
    assert group.size_bytes == before, "it does not grow with the tensors"
