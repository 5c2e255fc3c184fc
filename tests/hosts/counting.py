"""A rank that counts the bytes that its host sends in each operation: counting.py FOLDER.

The first rank of each host writes the numbers to FOLDER/HOST.json, by the order of the ranks and the operation.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import phalanx

COUNT = 12 << 18  # a multiple of every number of ranks
_SENT = Path("/sys/class/net/eth0/statistics/tx_bytes")


def main(folder: Path) -> None:
    world: Any = phalanx.connect()
    num_hosts = int(os.environ["WORLD_SIZE"]) // int(os.environ["LOCAL_WORLD_SIZE"])
    local_rank, host = int(os.environ["LOCAL_RANK"]), int(os.environ["GROUP_RANK"])
    groups = {"by host": world, "cyclic": world.split_by_color(0, key=local_rank * num_hosts + host)}
    sent: dict[str, dict[str, int]] = {}
    for order, group in groups.items():
        for name, call in _operations(group).items():
            call()  # connections are made when they are first used
            world.barrier()
            before = int(_SENT.read_text())
            call()
            world.barrier()
            sent.setdefault(order, {})[name] = int(_SENT.read_text()) - before
    if local_rank == 0:
        (folder / f"{host}.json").write_text(json.dumps(sent))


def _operations(group: Any) -> dict[str, Callable[[], object]]:
    whole = torch.ones(COUNT)
    part = torch.ones(COUNT // group.size)
    return {
        "all_reduce": lambda: group.all_reduce(whole),
        "all_gather": lambda: group.all_gather_single(whole, part),
        "reduce_scatter": lambda: group.reduce_scatter_single(part, whole),
        "broadcast": lambda: group.broadcast(whole, 1),
        "reduce": lambda: group.reduce(whole, 1),
        "all_to_all": lambda: group.all_to_all_single(torch.empty(COUNT), whole),
    }


if __name__ == "__main__":
    main(Path(sys.argv[1]))
