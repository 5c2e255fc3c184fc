"""Wait on a board for ranks that make a group, and name those that do not come."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from phalanx.diagnosis.formatting import rank_list
from phalanx.errors import OperationTimeoutError
from phalanx.launch.board import Board

_BETWEEN_CHECKS_S = 0.5


def _nothing() -> None:
    """Find nothing wrong."""


@dataclass(frozen=True)
class RollCall:
    """What the ranks come for.

    Attributes:
        title: What errors call it, such as 'split 0,1 of group "world"'.
        check: Raises if it is known by now that somebody will not come.
    """

    title: str
    check: Callable[[], None] = _nothing

    def read(self, board: Board, keys: Mapping[int, str], timeout_s: float) -> dict[int, str]:
        """Wait until each rank has written its key, and return the texts by rank.

        Args:
            board: What all ranks can read and write.
            keys: The key of each rank.
            timeout_s: How long to wait.

        Raises:
            OperationTimeoutError: A rank has not come in time; the error names all such ranks.
            PhalanxError: `check` has found something.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            self.check()
            left_s = max(0.0, deadline - time.monotonic())
            with contextlib.suppress(OperationTimeoutError):
                texts = board.get_many(list(keys.values()), min(left_s, _BETWEEN_CHECKS_S))
                return dict(zip(keys, texts, strict=True))
            if left_s == 0.0:
                raise self._too_late([rank for rank, key in keys.items() if not _is_there(board, key)], timeout_s)

    def _too_late(self, missing: list[int], timeout_s: float) -> OperationTimeoutError:
        return OperationTimeoutError(
            f"{self.title}: timed out after {timeout_s:.3g} s; {rank_list(missing)} did not come\n"
            "  do       make sure every rank makes this call, or give a longer timeout (timeout_s)",
            culprits=tuple(missing),
            verdict="not joined",
        )


def _is_there(board: Board, key: str) -> bool:
    try:
        board.get(key, 0.0)
    except OperationTimeoutError:
        return False
    return True
