"""The pytest file that ranks.py runs."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from phalanx.settings import copy_environment

# The numbers of ranks and tests, from `./dev bench harness`.
_NUM_RANKS, _NUM_TESTS = map(int, copy_environment().get("PHALANX_BENCH_SIZES", "2,1").split(","))


@pytest.mark.ranks(_NUM_RANKS)
@pytest.mark.parametrize("number", range(_NUM_TESTS))
def test_sum(group: Any, number: int) -> None:
    """Add up ones."""
    ones = torch.ones(4)
    group.all_reduce(ones)
    assert ones[0].item() == _NUM_RANKS
