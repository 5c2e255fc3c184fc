"""examples/04_lost_host.py goes on without a lost host, and trains as the ranks that are left would in one process."""

from __future__ import annotations

import re

import pytest
import torch
from torch import nn

from tests import leftovers
from tests.hosts.bed import hosts, needs_hosts
from tests.hosts.jobs import ROOT, HostsJob

pytestmark = [needs_hosts, pytest.mark.slow]

_EXAMPLE = str(ROOT / "examples/04_lost_host.py")
_NUM_STEPS = 30
_STEP = re.compile(r"^\[\d+\] step (\d+): ranks \(([\d, ]+)\), loss ([\d.]+)$", re.MULTILINE)


def test_training_goes_on_without_a_lost_host() -> None:
    program = [_EXAMPLE, "--steps", str(_NUM_STEPS), "--step-seconds", "0.05"]
    with hosts(2) as bed, HostsJob(bed, program, options=["--grace", "100"]) as job:
        first = job.launchers[0]
        assert leftovers.wait_until(lambda: len(_STEP.findall(first.output)) >= 5, 90), first.output
        bed[1].power_off()
        assert leftovers.wait_until(lambda: len(_STEP.findall(first.output)) >= _NUM_STEPS, 60), first.output
        first.process.wait(30)
        job.assert_nothing_left()
        output = first.output
    steps = [([int(rank) for rank in ranks.split(",")], float(loss)) for _, ranks, loss in _STEP.findall(output)]
    assert {tuple(ranks) for ranks, _ in steps} == {(0, 1, 2, 3), (0, 1)}, output
    assert "host 1 (host1, ranks 2-3) has been silent for 3 s" in output
    assert [loss for _, loss in steps] == pytest.approx(_train_alone([ranks for ranks, _ in steps]), abs=2e-6)


def _train_alone(ranks_of_steps: list[list[int]]) -> list[float]:
    """Train in one process on the batches of the ranks that took part in each step."""
    torch.manual_seed(0)
    model = nn.Linear(8, 1).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    losses = []
    for step, ranks in enumerate(ranks_of_steps):
        batches = [_make_batch(step, rank) for rank in ranks]
        inputs, targets = (torch.cat(parts) for parts in zip(*batches, strict=True))
        loss = nn.functional.mse_loss(model(inputs), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def _make_batch(step: int, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1000 * step + rank)
    inputs = torch.randn(16, 8, generator=generator, dtype=torch.float64)
    return inputs, inputs.sum(dim=1, keepdim=True)
