"""A training script for eight GPUs, which runs under torchrun on a machine that has them.

On a machine without GPUs, run: phalanx run -n 8 --virtual-gpus 8 examples/03_eight_gpus.py
"""

from __future__ import annotations

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

NUM_STEPS, BATCH = 40, 64


def make_batch(step: int, device: torch.device, copies: torch.cuda.Stream) -> tuple[torch.Tensor, torch.Tensor]:
    """Make points on the host and copy them to the device on a separate stream."""
    generator = torch.Generator().manual_seed(1000 * step + dist.get_rank())
    points = torch.rand(BATCH, 2, generator=generator).mul(2).sub(1).pin_memory()
    with torch.cuda.stream(copies):
        on_device = points.to(device, non_blocking=True)
    torch.cuda.current_stream().wait_stream(copies)
    on_device.record_stream(torch.cuda.current_stream())
    return on_device, (on_device.norm(dim=1, keepdim=True) < 0.7).float()


def train(device: torch.device) -> tuple[nn.Module, float, float]:
    torch.manual_seed(dist.get_rank())  # DDP sends the parameters of rank 0 to all ranks
    layers = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 1)).to(device)
    model = DistributedDataParallel(layers, device_ids=[device.index])
    optimizer = torch.optim.Adam(model.parameters(), lr=0.03)
    copies = torch.cuda.Stream()
    losses = []
    for step in range(NUM_STEPS):
        points, is_inside = make_batch(step, device, copies)
        loss = nn.functional.binary_cross_entropy_with_logits(model(points), is_inside)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        dist.all_reduce(mean := loss.detach().clone(), op=dist.ReduceOp.AVG)
        losses.append(mean.item())
    return layers, losses[0], losses[-1]


def main() -> None:
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    model, first, last = train(device)

    mine = nn.utils.parameters_to_vector(model.parameters()).detach()
    theirs = [torch.empty_like(mine) for _ in range(dist.get_world_size())]
    dist.all_gather(theirs, mine)
    print(f"{device} of {torch.cuda.device_count()}: {torch.cuda.memory_allocated() / 1024:.0f} KiB allocated")
    if dist.get_rank() == 0:
        print(f"loss {first:.3f} -> {last:.3f}")
        print(f"parameters equal on all {len(theirs)} ranks: {all(torch.equal(mine, other) for other in theirs)}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
