"""Ranks of several hosts that are really one: forked processes with a table of hosts that says something else.

Nothing of the network is tried this way, but all of the group is, and it needs no rights. tests/hosts has real ones.
"""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed

from phalanx.groups.hosts import HostTable
from phalanx.groups.hybrid import HybridGroup, join_over_hosts
from phalanx.groups.wires.gloo import GlooWire
from phalanx.groups.wires.wire import Wire
from phalanx.launch.board import Board, Seal, StoreBoard

LIMIT_S = 60
_distributed: Any = torch.distributed  # its types lack the stores


def run_on_pretended_hosts(
    body: Callable[[HybridGroup], None],
    folder: Path,
    hosts: Sequence[Sequence[int]] = ((0, 1), (2, 3)),
    *,
    timeout_s: float = 30,
    statuses: dict[int, int] | None = None,
) -> None:
    """Run a function on each rank, with a group of all of them, and check how the ranks end.

    Args:
        body: The function; what it raises is printed.
        folder: Where the ranks meet.
        hosts: The ranks of each host.
        timeout_s: The group's timeout.
        statuses: The exit codes of ranks that do not end with 0.
    """
    table = HostTable(tuple(tuple(host) for host in hosts))
    pids = []
    for rank in range(table.size):
        pid = os.fork()
        if pid == 0:
            os._exit(_run_rank(body, folder / "store", table, rank, timeout_s))
        pids.append(pid)
    found = {rank: os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for rank, pid in enumerate(pids)}
    assert found == {rank: (statuses or {}).get(rank, 0) for rank in range(table.size)}


def _run_rank(body: Callable[[HybridGroup], None], file: Path, table: HostTable, rank: int, timeout_s: float) -> int:
    signal.alarm(LIMIT_S)
    torch.set_num_threads(1)
    try:
        group = join_over_hosts(
            StoreBoard(_distributed.FileStore(str(file), table.size), Seal("token", "job")),
            rank,
            table,
            name="world",
            timeout_s=timeout_s,
            ranks=range(table.size),
            make_wire=_wire,
        )
        assert isinstance(group, HybridGroup)
        body(group)
        group.close()
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        return 1
    return 0


def _wire(board: Board, rank: int, size: int, timeout_s: float) -> Wire:
    return GlooWire(board, rank, size, "127.0.0.1", timeout_s)
