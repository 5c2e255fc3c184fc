from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from tests.torch_training import reference_training as reference
from tests.torch_training.training_ranks import all_close, close, train

pytestmark = pytest.mark.slow

WAYS: dict[str, dict[str, Any]] = {
    "plain": {},
    "gradient_as_bucket_view": {"gradient_as_bucket_view": True},
    "static_graph": {"static_graph": True},
    "find_unused_parameters": {"find_unused_parameters": True},
    "a_bucket_for_each_parameter": {"bucket_cap_mb": 1e-6, "gradient_as_bucket_view": True},
}


@pytest.mark.parametrize("ranks", [2, 3])
def test_ddp_trains_like_one_process(ranks: int) -> None:
    def program(rank: int) -> dict[str, dict[str, Tensor]]:
        results = {}
        for way, options in WAYS.items():
            model = reference.make_model(seed=rank)  # DDP must copy rank 0's
            reference.train_spread(DistributedDataParallel(model, **options), rank)
            results[way] = reference.parameters_of(model)
        return results

    expected = reference.train_alone(ranks)
    for results in train(ranks, program):
        for way in WAYS:
            all_close(results[way], expected, way)


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


def test_a_parameter_that_one_rank_uses_gets_the_mean_over_all_ranks() -> None:
    def program(rank: int) -> list[dict[str, Tensor]]:
        ddp = DistributedDataParallel(_Branches(), find_unused_parameters=True)
        gradients = []
        for step in range(3):
            ddp.zero_grad()
            ddp(_inputs(step, rank), rank == step).backward()
            gradients.append(reference.gradients_of(ddp.module))
        return gradients

    model = _Branches()
    expected = []
    for step in range(3):  # in the last step nobody uses it
        model.zero_grad()
        (sum(model(_inputs(step, rank), rank == step) for rank in range(2)) / 2).backward()
        expected.append(reference.gradients_of(model))
    for gradients in train(2, program):
        for mine, its in zip(gradients, expected, strict=True):
            all_close(mine, its)


def test_no_sync_accumulates_and_the_next_backward_averages_all() -> None:
    def program(rank: int) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        ddp = DistributedDataParallel(reference.make_model(), gradient_as_bucket_view=True)
        with ddp.no_sync():
            for step in range(2):
                reference.loss_of(ddp, *reference.batch(step, rank)).backward()
        own = reference.gradients_of(ddp.module)
        reference.loss_of(ddp, *reference.batch(2, rank)).backward()
        return own, reference.gradients_of(ddp.module)

    def alone(steps: int, ranks: list[int]) -> dict[str, Tensor]:
        model = reference.make_model()
        for step in range(steps):
            reference.loss_of(model, *reference.whole_batch(step, ranks)).backward()
        return reference.gradients_of(model)

    for rank, (own, averaged) in enumerate(train(2, program)):
        all_close(own, alone(2, [rank]))
        all_close(averaged, alone(3, [0, 1]))


def test_join_lets_a_rank_have_fewer_batches() -> None:
    num_batches = [2, 5, 3]

    def program(rank: int) -> dict[str, Tensor]:
        ddp = DistributedDataParallel(reference.make_model())
        optimizer = reference.make_sgd(ddp.parameters())
        with ddp.join():
            for step in range(num_batches[rank]):
                optimizer.zero_grad()
                reference.loss_of(ddp, *reference.batch(step, rank)).backward()
                optimizer.step()
        return reference.parameters_of(ddp.module)

    model = reference.make_model()
    optimizer = reference.make_sgd(model.parameters())
    for step in range(max(num_batches)):
        optimizer.zero_grad()
        for rank in [rank for rank in range(3) if step < num_batches[rank]]:
            # join() divides by the number of ranks at the start
            (reference.loss_of(model, *reference.batch(step, rank)) / 3).backward()
        optimizer.step()
    for parameters in train(3, program):
        all_close(parameters, reference.parameters_of(model))


def test_parameters_of_several_types_are_averaged_in_their_own_buckets() -> None:
    dtypes = [torch.float32, torch.float64, torch.bfloat16, torch.float32, torch.complex64, torch.float16]

    def make() -> nn.ParameterList:
        return nn.ParameterList([nn.Parameter(torch.ones(7, dtype=dtype)) for dtype in dtypes])

    class Weighted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weights = make()

        def forward(self, factor: float) -> Any:
            return sum((weight.abs().float() * factor * (at + 1)).sum() for at, weight in enumerate(self.weights))

    def program(rank: int) -> dict[str, Tensor]:
        ddp = DistributedDataParallel(Weighted())
        for _ in range(2):  # the second time with rebuilt buckets
            ddp.zero_grad()
            ddp(float(rank + 1)).backward()
        return reference.gradients_of(ddp.module)

    for gradients in train(3, program):
        for at, dtype in enumerate(dtypes):
            close(gradients[f"weights.{at}"], torch.full((7,), 2.0 * (at + 1), dtype=dtype), dtype)


def test_sparse_gradients_are_averaged() -> None:
    def make() -> nn.Embedding:
        torch.manual_seed(0)
        return nn.Embedding(10, 3, sparse=True).double()

    words = [torch.tensor([1, 2, 2, 7]), torch.tensor([2, 9, 0, 0])]

    def program(rank: int) -> Tensor:
        ddp = DistributedDataParallel(make())
        ddp(words[rank]).square().mean().backward()
        gradient = ddp.module.weight.grad
        assert gradient.is_sparse
        return torch.as_tensor(gradient.to_dense())

    embedding = make()
    embedding(torch.cat(words)).square().mean().backward()
    assert embedding.weight.grad is not None
    for gradient in train(2, program):
        close(gradient, embedding.weight.grad.to_dense())


def test_rank_zeros_buffers_reach_all_ranks() -> None:
    def program(rank: int) -> Tensor:
        ddp = DistributedDataParallel(nn.BatchNorm1d(3).double())
        ddp(torch.full((4, 3), float(rank + 1), dtype=torch.float64)).sum().backward()
        with torch.no_grad():
            ddp(torch.zeros(4, 3, dtype=torch.float64))  # starts with a broadcast
        return torch.as_tensor(ddp.module.running_mean).clone()

    for mean in train(2, program):
        close(mean, torch.full((3,), 0.1 * 0.9, dtype=torch.float64))
