"""A program as people write it for torch.distributed, but for the name of the backend; it does not import phalanx."""

import torch
import torch.distributed as dist

dist.init_process_group("phalanx")
rank, size = dist.get_rank(), dist.get_world_size()
tensor = torch.full((5,), float(rank))
dist.all_reduce(tensor)
assert tensor.tolist() == [sum(range(size))] * 5
rows = [torch.zeros(2) for _ in range(size)]
dist.all_gather(rows, torch.full((2,), float(rank)))
assert torch.stack(rows).tolist() == [[float(each)] * 2 for each in range(size)]
pair = dist.new_group([0, size - 1])
if rank in (0, size - 1):
    dist.broadcast(tensor, src=0, group=pair)
dist.barrier()
dist.destroy_process_group()
print(f"rank {rank} of {size} is done")
