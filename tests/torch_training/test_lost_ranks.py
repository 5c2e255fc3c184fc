from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed._functional_collectives as functional
from torch.nn.parallel import DistributedDataParallel

from tests.checks import Stopwatch
from tests.torch_training import reference_training as reference
from tests.torch_training.training_ranks import trains_on

pytestmark = trains_on(3)


def _backward(model: Any, rank: int, step: int) -> None:
    reference.loss_of(model, *reference.batch(step, rank)).backward()


@pytest.mark.parametrize("is_leaving", [True, False])
def test_a_rank_that_leaves_before_its_backward_pass_ends_that_of_the_others(
    process_group: Any, rank: int, is_leaving: bool
) -> None:
    """Not a hang, not a crash: DDP's reducer, in C++, gets the error of the collective."""
    ddp = DistributedDataParallel(reference.make_model(), bucket_cap_mb=0.0005)
    _backward(ddp, rank, 0)
    watch = Stopwatch()
    if rank != 1:
        with pytest.raises(RuntimeError, match="rank 1"):
            _backward(ddp, rank, 1)
    elif is_leaving:
        process_group.shutdown()
    else:
        process_group.abort()
    assert watch.seconds() < 40


@pytest.mark.ranks(2)
def test_a_functional_collective_raises_when_its_result_is_used(process_group: Any, rank: int) -> None:
    watch = Stopwatch()
    if rank == 1:
        process_group.shutdown()
    else:
        with pytest.raises(RuntimeError, match="rank 1"):
            functional.all_reduce(torch.ones(4), "sum", process_group) + 0
    assert watch.seconds() < 40
