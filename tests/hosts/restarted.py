"""Rank 3 fails in the first attempt, and torchrun starts all ranks again: restarted.py DOOR."""

import os
import sys
from typing import Any

import torch

import phalanx

all_reduce: Any
if sys.argv[1] == "phalanx":
    group = phalanx.connect()
    rank, all_reduce = group.rank, group.all_reduce
else:
    torch.distributed.init_process_group("phalanx")
    rank, all_reduce = torch.distributed.get_rank(), torch.distributed.all_reduce
tensor = torch.ones(3)
all_reduce(tensor)
if rank == 3 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    raise ValueError("bad batch")
all_reduce(tensor)
assert tensor.tolist() == [16.0] * 3
print(f"rank {rank} of 4 is done")
