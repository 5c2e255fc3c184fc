"""A program for GPUs, on virtual ones: on_gpus.py BACKEND."""

import os
import sys

import torch
import torch.distributed as dist

device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
torch.cuda.set_device(device)
dist.init_process_group(sys.argv[1])
rank, size = dist.get_rank(), dist.get_world_size()
for where in ("cpu", device):
    if where == "cpu" and sys.argv[1] == "nccl":
        continue
    tensor = torch.full((5,), float(rank), device=where)
    dist.all_reduce(tensor)
    assert tensor.tolist() == [sum(range(size))] * 5
    rows = [torch.zeros(2, device=where) for _ in range(size)]
    dist.all_gather(rows, torch.full((2,), float(rank), device=where))
    assert torch.stack(rows).tolist() == [[float(each)] * 2 for each in range(size)]
    for count in (3, 100_000):  # a small message travels in its frame, a large one behind it
        received = torch.zeros(count, device=where)
        there, back = (rank + 2) % size, (rank - 2) % size  # on the other host
        sending = dist.isend(torch.full((count,), float(rank), device=where), there)
        dist.recv(received, back)
        assert sending is not None
        sending.wait()
        assert received.unique().tolist() == [float(back)]
dist.barrier()
dist.destroy_process_group()
print(f"rank {rank} of {size} is done")
