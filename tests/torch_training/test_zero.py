from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from tests.torch_training import reference_training as reference
from tests.torch_training.closeness import all_close
from tests.torch_training.training_ranks import trains_on

pytestmark = trains_on(2)


@pytest.mark.ranks(3)
def test_zero_redundancy_adam_is_adam(rank: int) -> None:
    from torch.distributed.optim import ZeroRedundancyOptimizer

    ddp = DistributedDataParallel(reference.make_model())
    optimizers = []

    def make(parameters: Any) -> torch.optim.Optimizer:
        optimizer = ZeroRedundancyOptimizer(parameters, torch.optim.Adam, parameters_as_bucket_view=True, lr=0.01)
        optimizers.append(optimizer)
        return optimizer

    reference.train_spread(ddp, rank, make)
    expected = reference.train_alone(3, reference.make_adam)
    all_close(reference.parameters_of(ddp.module), expected)
    optimizers[0].consolidate_state_dict(to=0)
    if rank == 0:
        assert len(optimizers[0].state_dict()["state"]) == len(expected)


@pytest.mark.parametrize("name", ["hook_with_zero_step", "hook_with_zero_step_interleaved"])
def test_optimizer_steps_inside_the_backward_pass_are_sgd(rank: int, name: str) -> None:
    """torch refuses this over Gloo: each bucket's owner broadcasts its parameters while gradients are on their way."""
    from torch.distributed.algorithms.ddp_comm_hooks import ddp_zero_hook
    from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
    from torch.distributed.optim import ZeroRedundancyOptimizer

    num_steps, num_skipped = 6, 2  # torch takes two steps to learn the buckets, and does not train in them
    ddp = DistributedDataParallel(reference.make_model(), bucket_cap_mb=0.0005)
    optimizer = ZeroRedundancyOptimizer(ddp.parameters(), torch.optim.SGD, overlap_with_ddp=True, lr=0.1)
    ddp.register_comm_hook(None, getattr(ddp_zero_hook, name)(allreduce_hook, ddp, optimizer))
    for step in range(num_steps):
        ddp.zero_grad()
        reference.loss_of(ddp, *reference.batch(step, rank)).backward()
        optimizer.step()

    model = reference.make_model()
    sgd = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(num_skipped, num_steps):
        sgd.zero_grad()
        reference.loss_of(model, *reference.whole_batch(step, range(2))).backward()
        sgd.step()
    all_close(reference.parameters_of(ddp.module), reference.parameters_of(model))


def test_a_rank_with_fewer_batches_joins_in_the_optimizers_steps_as_over_gloo(process_group: Any, rank: int) -> None:
    """One process can't be the reference: a joined rank's optimizer goes on with its last gradients."""
    from torch.distributed.algorithms.join import Join
    from torch.distributed.optim import ZeroRedundancyOptimizer

    def train(group: Any) -> dict[str, Tensor]:
        ddp = DistributedDataParallel(reference.make_model(), process_group=group)
        optimizer = ZeroRedundancyOptimizer(ddp.parameters(), torch.optim.SGD, process_group=group, lr=0.1)
        with Join([ddp, optimizer]):
            for step in range(2 + rank):
                optimizer.zero_grad()
                reference.loss_of(ddp, *reference.batch(step, rank)).backward()
                optimizer.step()
        return reference.parameters_of(ddp.module)

    all_close(train(process_group), train(dist.new_group(backend="gloo")))
