from __future__ import annotations

import time
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from tests.torch_training import reference_training as reference
from tests.torch_training.training_ranks import train

pytestmark = pytest.mark.slow


def _backward(model: Any, rank: int, step: int) -> None:
    reference.loss_of(model, *reference.batch(step, rank)).backward()


def _what_is_raised(call: Any) -> tuple[str, str, float]:
    start_s = time.monotonic()
    try:
        call()
    except Exception as error:
        return type(error).__name__, str(error), time.monotonic() - start_s
    return "nothing", "", time.monotonic() - start_s


@pytest.mark.parametrize("is_leaving", [True, False])
def test_a_rank_that_leaves_before_its_backward_pass_ends_that_of_the_others(is_leaving: bool) -> None:
    """Not a hang, not a crash: DDP's reducer, in C++, gets the error of the collective."""

    def program(rank: int) -> tuple[str, str, float]:
        ddp = DistributedDataParallel(reference.make_model(), bucket_cap_mb=0.0005)
        _backward(ddp, rank, 0)
        if rank == 1:
            world: Any = dist.group.WORLD
            if is_leaving:
                world.shutdown()
            else:
                world.abort()
            return "", "", 0.0
        return _what_is_raised(lambda: _backward(ddp, rank, 1))

    for kind, text, duration_s in train(3, program)[::2]:
        assert kind != "nothing"
        assert "rank 1" in text, text
        assert duration_s < 10


def test_a_functional_collective_raises_when_its_result_is_used() -> None:
    def program(rank: int) -> tuple[str, str, float]:
        import torch.distributed._functional_collectives as functional

        world: Any = dist.group.WORLD
        if rank == 1:
            world.shutdown()
            return "", "", 0.0
        return _what_is_raised(lambda: functional.all_reduce(torch.ones(4), "sum", world) + 0)

    (kind, text, duration_s), _ = train(2, program)
    assert kind != "nothing"
    assert "rank 1" in text, text
    assert duration_s < 10
