"""The last rank never comes to the second all_reduce; each other rank writes down its error: late.py FOLDER."""

import sys
import threading
from pathlib import Path

import torch
import torch.distributed as dist

dist.init_process_group("phalanx")
rank, tensor, folder = dist.get_rank(), torch.zeros(4), Path(sys.argv[1])
dist.all_reduce(tensor)


def read_batch() -> None:
    threading.Event().wait()


if rank == dist.get_world_size() - 1:
    read_batch()
group = dist.distributed_c10d._get_default_group()
try:
    group.phalanx_group.all_reduce(tensor, timeout_s=2)  # type: ignore[attr-defined]
except Exception as error:
    unfinished = folder / f"{rank}.part"
    unfinished.write_text(f"{type(error).__name__}: {error}")
    unfinished.rename(folder / f"{rank}.error")
    threading.Event().wait()  # torchrun ends the others when it sees that one has failed
