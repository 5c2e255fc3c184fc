from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from tests.torch_training import reference_training as reference
from tests.torch_training.closeness import all_close, close
from tests.torch_training.training_ranks import trains_on

pytestmark = trains_on(2)

WAYS: dict[str, dict[str, Any]] = {
    "plain": {},
    "gradient_as_bucket_view": {"gradient_as_bucket_view": True},
    "static_graph": {"static_graph": True},
    "find_unused_parameters": {"find_unused_parameters": True},
    "a_bucket_for_each_parameter": {"bucket_cap_mb": 1e-6, "gradient_as_bucket_view": True},
}


@pytest.mark.ranks([2, 3])
def test_ddp_trains_like_one_process(rank: int, world_size: int) -> None:
    for way, options in WAYS.items():
        model = reference.make_model(seed=rank)  # DDP must copy rank 0's
        reference.train_spread(DistributedDataParallel(model, **options), rank)
        all_close(reference.parameters_of(model), reference.train_alone(world_size), way)


class _Branches(nn.Module):
    """Has a layer that only some calls use, and one that none does."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.always = nn.Linear(4, 4).double()
        self.sometimes = nn.Linear(4, 4).double()
        self.never = nn.Linear(4, 4).double()

    def forward(self, inputs: Tensor, is_branching: bool) -> Tensor:
        hidden: Tensor = self.always(inputs)
        return (self.sometimes(hidden) if is_branching else hidden).square().mean()


def _inputs(step: int, rank: int) -> Tensor:
    return torch.randn(5, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(10 * step + rank))


def test_a_parameter_that_one_rank_uses_gets_the_mean_over_all_ranks(rank: int) -> None:
    ddp, model = DistributedDataParallel(_Branches(), find_unused_parameters=True), _Branches()
    for step in range(3):  # in the last step nobody uses it
        ddp.zero_grad()
        ddp(_inputs(step, rank), rank == step).backward()
        model.zero_grad()
        (sum(model(_inputs(step, other), other == step) for other in range(2)) / 2).backward()
        all_close(reference.gradients_of(ddp.module), reference.gradients_of(model), step)


def test_no_sync_accumulates_and_the_next_backward_averages_all(rank: int) -> None:
    def alone(steps: int, ranks: list[int]) -> dict[str, Tensor]:
        model = reference.make_model()
        for step in range(steps):
            reference.loss_of(model, *reference.whole_batch(step, ranks)).backward()
        return reference.gradients_of(model)

    ddp = DistributedDataParallel(reference.make_model(), gradient_as_bucket_view=True)
    with ddp.no_sync():
        for step in range(2):
            reference.loss_of(ddp, *reference.batch(step, rank)).backward()
    all_close(reference.gradients_of(ddp.module), alone(2, [rank]))
    reference.loss_of(ddp, *reference.batch(2, rank)).backward()
    all_close(reference.gradients_of(ddp.module), alone(3, [0, 1]))


@pytest.mark.ranks(3)
def test_join_lets_a_rank_have_fewer_batches(rank: int) -> None:
    num_batches = [2, 5, 3]
    ddp = DistributedDataParallel(reference.make_model())
    optimizer = reference.make_sgd(ddp.parameters())
    with ddp.join():
        for step in range(num_batches[rank]):
            optimizer.zero_grad()
            reference.loss_of(ddp, *reference.batch(step, rank)).backward()
            optimizer.step()

    model = reference.make_model()
    optimizer = reference.make_sgd(model.parameters())
    for step in range(max(num_batches)):
        optimizer.zero_grad()
        for other in [other for other in range(3) if step < num_batches[other]]:
            # join() divides by the number of ranks at the start
            (reference.loss_of(model, *reference.batch(step, other)) / 3).backward()
        optimizer.step()
    all_close(reference.parameters_of(ddp.module), reference.parameters_of(model))


@pytest.mark.ranks(3)
def test_parameters_of_several_types_are_averaged_in_their_own_buckets(rank: int) -> None:
    dtypes = [torch.float32, torch.float64, torch.bfloat16, torch.float32, torch.complex64, torch.float16]

    class Weighted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weights = nn.ParameterList([nn.Parameter(torch.ones(7, dtype=dtype)) for dtype in dtypes])

        def forward(self, factor: float) -> Any:
            return sum((weight.abs().float() * factor * (at + 1)).sum() for at, weight in enumerate(self.weights))

    ddp = DistributedDataParallel(Weighted())
    for _ in range(2):  # the second time with rebuilt buckets
        ddp.zero_grad()
        ddp(float(rank + 1)).backward()
    gradients = reference.gradients_of(ddp.module)
    for at, dtype in enumerate(dtypes):
        close(gradients[f"weights.{at}"], torch.full((7,), 2.0 * (at + 1), dtype=dtype), dtype)


def test_sparse_gradients_are_averaged(rank: int) -> None:
    def make() -> nn.Embedding:
        torch.manual_seed(0)
        return nn.Embedding(10, 3, sparse=True).double()

    words = [torch.tensor([1, 2, 2, 7]), torch.tensor([2, 9, 0, 0])]
    ddp, embedding = DistributedDataParallel(make()), make()
    ddp(words[rank]).square().mean().backward()
    embedding(torch.cat(words)).square().mean().backward()
    gradient, expected = ddp.module.weight.grad, embedding.weight.grad
    assert gradient.is_sparse
    assert expected is not None
    close(gradient.to_dense(), expected.to_dense())


def test_rank_zeros_buffers_reach_all_ranks(rank: int) -> None:
    ddp = DistributedDataParallel(nn.BatchNorm1d(3).double())
    ddp(torch.full((4, 3), float(rank + 1), dtype=torch.float64)).sum().backward()
    with torch.no_grad():
        ddp(torch.zeros(4, 3, dtype=torch.float64))  # starts with a broadcast
    close(ddp.module.running_mean, torch.full((3,), 0.1 * 0.9, dtype=torch.float64))
