"""The barrier that says who is missing, and leaves the group as it was."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
import torch

from phalanx.errors import OperationTimeoutError
from phalanx.testing import faults
from phalanx.torch_backend.untyped import dist

pytestmark = [pytest.mark.ranks(2), pytest.mark.usefixtures("process_group")]


@pytest.mark.slow
@pytest.mark.ranks(4)
def test_it_names_the_missing_ranks_and_the_group_stays_usable(rank: int) -> None:
    dist.monitored_barrier()
    if rank in (0, 3):
        with pytest.raises(OperationTimeoutError) as caught:
            dist.monitored_barrier(timeout=timedelta(seconds=8), wait_all_ranks=True)
        if rank == 0:
            assert str(caught.value).startswith("[Rank 0]: Ranks 1, 2 failed to pass monitoredBarrier in 8000 ms")
        else:
            assert "Rank 3 successfully reached monitoredBarrier, but received errors" in str(caught.value)
    value = torch.ones(1)
    dist.all_reduce(value)
    assert float(value) == 4.0
    dist.monitored_barrier(timeout=timedelta(seconds=20))


@pytest.mark.slow
@pytest.mark.ranks(3)
def test_a_rank_that_answers_slowly_is_not_missing_because_another_one_is(rank: int) -> None:
    faults.delay(rank=2, at=("send", 2), seconds=0.3)  # its answer; the first message says that it is there
    if rank != 1:
        with pytest.raises(OperationTimeoutError) as caught:
            dist.monitored_barrier(timeout=timedelta(seconds=4), wait_all_ranks=True)
        if rank == 0:
            assert str(caught.value).startswith("[Rank 0]: Ranks 1 failed to pass monitoredBarrier in 4000 ms")
    dist.barrier()


@pytest.mark.slow
@pytest.mark.ranks(3)
def test_the_first_missing_rank_is_enough_by_default(rank: int) -> None:
    for milliseconds in range(20, 300, 20):  # whichever rank it listens to when the time is up
        if rank == 0:
            with pytest.raises(OperationTimeoutError, match="Rank 1 failed to pass monitoredBarrier"):
                dist.monitored_barrier(timeout=timedelta(milliseconds=milliseconds))
    dist.barrier()  # the others wait here, so they have not left


def test_no_time_is_rank_0s_own_fault(process_group: Any, rank: int) -> None:
    with pytest.raises(OperationTimeoutError) as caught:
        process_group.monitored_barrier(timedelta(0))
    if rank == 0:
        assert "Rank 0 timed out in monitoredBarrier" in str(caught.value)


def test_gloo_keeps_its_own() -> None:
    other = dist.new_group(backend="gloo")
    dist.monitored_barrier(other, timeout=timedelta(seconds=20))
    assert dist.get_backend(other) == "gloo"
