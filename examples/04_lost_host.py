"""Train on several hosts, and go on with the ranks that are left when a host is lost.

    phalanx run --nnodes 2 --rdzv-endpoint node0:29500 -n 2 --grace 3600 examples/04_lost_host.py

Type it on both hosts, and then pull a cable. --grace says how long the launcher lets the other ranks continue.
docs/from-one-machine-to-many.md says how to try this on one machine.
"""

import argparse
import time

import torch
from torch import nn

import phalanx

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=200)
parser.add_argument("--step-seconds", type=float, default=0.1, help="a step takes at least so long")
options = parser.parse_args()


def make_batch(step, rank):
    generator = torch.Generator().manual_seed(1000 * step + rank)
    inputs = torch.randn(16, 8, generator=generator, dtype=torch.float64)
    return inputs, inputs.sum(dim=1, keepdim=True)


group = phalanx.connect()
number = group.rank  # stays the same when the group shrinks: it says which batches are mine
torch.manual_seed(0)
model = nn.Linear(8, 1).double()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)


def train_step(step):
    """Average the gradients and the loss of all ranks of the group."""
    inputs, targets = make_batch(step, number)
    loss = nn.functional.mse_loss(model(inputs), targets)
    optimizer.zero_grad()
    loss.backward()
    sums = torch.cat([*(p.grad.reshape(-1) for p in model.parameters()), loss.detach().reshape(1)])
    group.all_reduce(sums, op="avg")
    parts = sums.split([*(p.numel() for p in model.parameters()), 1])
    for parameter, part in zip(model.parameters(), parts, strict=False):
        parameter.grad = part.view_as(parameter)
    optimizer.step()
    return sums[-1].item()


def agree_on_step(step):
    """Take the state of a rank that has come furthest: some may have had the sums when the host was lost."""
    steps = group.all_gather_object(step)
    source = steps.index(max(steps))
    model.load_state_dict(group.broadcast_object(model.state_dict(), source))
    return steps[source]


step = 0
while step < options.steps:
    time.sleep(options.step_seconds)
    try:
        loss = train_step(step)
    except phalanx.PhalanxError as error:
        print(f"step {step}: {str(error).splitlines()[0]}", flush=True)
        group = group.shrink()
        step = agree_on_step(step)
        continue
    step += 1
    if group.rank == 0:
        print(f"step {step}: ranks {group.ranks}, loss {loss:.6f}", flush=True)
