"""Your first tests on ranks. Run them with `pytest examples/02_test_averages.py`.

They test a small function that a training script might have: it averages a loss over all ranks.
"""

from __future__ import annotations

import pytest
import torch

import phalanx
from phalanx.testing import assert_same_on_ranks, faults


def average(group: phalanx.Group, loss: float) -> float:
    """Return the mean of the losses of all ranks."""
    total = torch.tensor([loss])
    group.all_reduce(total)
    return total.item() / group.size


@pytest.mark.ranks([1, 2, 4])
def test_average_is_the_mean_of_all_ranks(group: phalanx.Group, rank: int, world_size: int) -> None:
    assert average(group, loss=float(rank)) == (world_size - 1) / 2


@pytest.mark.ranks(3)
@pytest.mark.parametrize("loss", [0.1, 1e30])
def test_all_ranks_get_the_same_bits(group: phalanx.Group, loss: float) -> None:
    assert_same_on_ranks(average(group, loss))


@pytest.mark.ranks(3)
def test_a_lost_rank_is_named(group: phalanx.Group) -> None:
    faults.kill(rank=1, at="all_reduce")
    with pytest.raises(phalanx.PeerDiedError, match="rank 1"):
        average(group, 1.0)
