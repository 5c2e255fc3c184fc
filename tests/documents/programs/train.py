"""The program that the pages call train.py: it trains on whatever the launcher gives it."""

from __future__ import annotations

import argparse
import os

import torch
import torch.distributed as dist
from torch import nn


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--rate", type=float, default=0.1)
    rate = options.parse_args().rate
    on_gpu = torch.cuda.is_available()
    dist.init_process_group("nccl" if on_gpu else "phalanx")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    torch.manual_seed(dist.get_rank())
    model = nn.Linear(4, 1, device=device)
    for _ in range(2):
        model(torch.randn(8, 4, device=device)).sum().backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad, dist.ReduceOp.AVG)
            parameter.data -= rate * parameter.grad
            parameter.grad = None
    print(f"rank {dist.get_rank()} of {dist.get_world_size()} has trained")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
