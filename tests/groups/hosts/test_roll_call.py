"""Waiting on a board for ranks, and naming those that do not come."""

from __future__ import annotations

from typing import Any

import pytest
import torch.distributed

from phalanx.errors import AbortedError, OperationTimeoutError
from phalanx.groups.roll_call import RollCall
from phalanx.launch.board import Seal, StoreBoard

_distributed: Any = torch.distributed  # its types lack the stores
_KEYS = {rank: f"came/{rank}" for rank in (4, 5, 6, 7)}


def _board() -> StoreBoard:
    return StoreBoard(_distributed.HashStore(), Seal("token", "job"))


def test_texts_come_by_rank() -> None:
    board = _board()
    for rank, key in _KEYS.items():
        board.set(key, f"text of {rank}")
    assert RollCall("group").read(board, _KEYS, 0.0) == {rank: f"text of {rank}" for rank in _KEYS}


def test_all_missing_ranks_are_named() -> None:
    board = _board()
    board.set("came/5", "")
    with pytest.raises(
        OperationTimeoutError, match=r"^split: timed out after 0 s; ranks 4, 6-7 did not come"
    ) as raised:
        RollCall("split").read(board, _KEYS, 0.0)
    assert (raised.value.culprits, raised.value.verdict) == ((4, 6, 7), "not joined")


def test_a_wait_ends_when_it_is_known_that_somebody_will_not_come() -> None:
    looks = []

    def check() -> None:
        looks.append(1)
        if len(looks) == 2:
            raise AbortedError("enough")

    with pytest.raises(AbortedError, match="enough"):
        RollCall("group", check).read(_board(), _KEYS, 600.0)
