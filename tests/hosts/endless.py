"""A rank that goes on for ever, and writes down how that ended: endless.py WHAT BYTES FOLDER.

It calls all_reduce of so many bytes, on a group that WHAT names: "phalanx" is that of connect(), "torch" and "gloo" are
those of torch.distributed over phalanx and over Gloo, "split" has the ranks of the first two hosts only. "idle" is
connected and calls nothing; "meeting" waits for ranks of the last host that never call connect(). In
"closing", rank 0 closes its group after a message to the last rank, which calls nothing.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from phalanx.errors import PhalanxError
from phalanx_tools.conformance.faults.notes import note_error


def main(what: str, num_bytes: int, folder: Path) -> None:
    rank = int(os.environ["RANK"])
    tensor = torch.zeros(num_bytes // 4)
    try:
        if what == "meeting":
            _say_ready(folder, rank)
        if what == "closing":
            _close(folder, rank)
        all_reduce = _enter(what)
        all_reduce(tensor)
        if what != "meeting":
            _say_ready(folder, rank)
        while True:
            all_reduce(tensor)
    except PhalanxError as error:
        note_error(folder, rank, error)
        raise


def _close(folder: Path, rank: int) -> None:
    import phalanx

    group = phalanx.connect()
    if rank == 0:
        group.send(torch.ones(1), group.size - 1)
    _say_ready(folder, rank)
    if rank == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the launcher's would end the wait
        group.close()
        (folder / "closed").touch()
    while True:
        _idle(torch.empty(0))


def _say_ready(folder: Path, rank: int) -> None:
    (folder / f"{rank}.ready").write_text(str(os.getpid()))


def _enter(what: str) -> Callable[[torch.Tensor], Any]:
    if what in ("torch", "gloo"):
        import torch.distributed as dist

        dist.init_process_group("phalanx" if what == "torch" else "gloo")
        return dist.all_reduce
    import phalanx

    host, local_size, size = (int(os.environ[name]) for name in ("GROUP_RANK", "LOCAL_WORLD_SIZE", "WORLD_SIZE"))
    is_last = host == size // local_size - 1
    if what == "meeting" and is_last:
        return _idle
    group = phalanx.connect()
    if what == "split":
        part = group.split(range(2 * local_size))
        return _idle if part is None else part.all_reduce
    return _idle if what == "idle" else group.all_reduce


def _idle(_: torch.Tensor) -> None:
    time.sleep(0.01)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))
