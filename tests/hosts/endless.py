"""A rank that calls all_reduce for ever, and writes down how that ended: endless.py DOOR BYTES FOLDER.

Doors: "phalanx" is connect(), "torch" is torch.distributed over phalanx, "gloo" is torch.distributed over Gloo.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from phalanx.errors import PhalanxError
from phalanx_tools.conformance.faults.notes import note_error


def main(door: str, num_bytes: int, folder: Path) -> None:
    rank, all_reduce = _enter(door)
    tensor = torch.zeros(num_bytes // 4)
    all_reduce(tensor)
    (folder / f"{rank}.ready").write_text(str(os.getpid()))
    try:
        while True:
            all_reduce(tensor)
    except PhalanxError as error:
        note_error(folder, rank, error)
        raise


def _enter(door: str) -> tuple[int, Callable[[torch.Tensor], Any]]:
    if door == "phalanx":
        import phalanx

        group = phalanx.connect()
        return group.rank, group.all_reduce
    import torch.distributed as dist

    dist.init_process_group("phalanx" if door == "torch" else "gloo")
    return dist.get_rank(), dist.all_reduce


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))
