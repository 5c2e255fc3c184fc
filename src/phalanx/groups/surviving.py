"""Find out which ranks of a group over hosts are left, so that they can go on without the others."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Any

from phalanx.errors import OperationTimeoutError, UsageError
from phalanx.launch.board import Board
from phalanx.launch.rank_server import ask_hosts

_BETWEEN_LOOKS_S = 0.2
_ANSWER_S = 1.0


def agree_on_survivors(
    board: Board, host: int, num_hosts: int, survivors: Sequence[int], timeout_s: float
) -> list[int]:
    """Tell the other hosts which ranks are left here, and return those of all hosts. One rank of each host calls this.

    The first host that comes decides for all. It waits for every host whose launcher answers. If nobody knows which
    launchers are alive, it waits for all hosts until the time is up.

    Args:
        board: What all ranks see; the keys must be new.
        host: The number of this host.
        num_hosts: The number of hosts.
        survivors: The ranks that are left here.
        timeout_s: How long to wait for the other hosts.

    Raises:
        OperationTimeoutError: The host that decides did not do so in time.
        UsageError: This host came after the decision.
    """
    board.set(f"host/{host}", json.dumps(list(survivors)))
    if board.add("deciders") == 1:
        found = _wait_for_hosts(board, num_hosts, timeout_s)
        board.set("survivors", json.dumps(sorted(rank for ranks in found for rank in ranks)))
    decided: list[Any] = json.loads(board.get("survivors", timeout_s))
    if not set(survivors) <= set(decided):
        raise UsageError(f"shrink: the other hosts have gone on without ranks {list(survivors)}, which came too late")
    return [int(rank) for rank in decided]


def _wait_for_hosts(board: Board, num_hosts: int, timeout_s: float) -> list[list[int]]:
    until = time.monotonic() + timeout_s
    found: dict[int, list[int]] = {}
    while True:
        for host in set(range(num_hosts)) - set(found):
            try:
                found[host] = json.loads(board.get(f"host/{host}", 0))
            except OperationTimeoutError:
                continue
        alive = {number for number, _ in ask_hosts({"kind": "rows", "group": ""}, _ANSWER_S)}
        if len(found) == num_hosts or (alive and len(found) >= len(alive)) or time.monotonic() > until:
            return list(found.values())
        time.sleep(_BETWEEN_LOOKS_S)
