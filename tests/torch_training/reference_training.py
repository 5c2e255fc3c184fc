"""What the tests train, and the same training in one process: what every way of spreading it must give."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

ROWS_PER_RANK = 4
NUM_INPUTS = 6
NUM_OUTPUTS = 3
NUM_STEPS = 4

MakeOptimizer = Callable[[Any], torch.optim.Optimizer]


def make_model(seed: int = 0) -> nn.Sequential:
    """Return a small model in double precision: differences are then bugs, not rounding."""
    torch.manual_seed(seed)
    layers = [nn.Linear(NUM_INPUTS, 16), nn.Tanh(), nn.Linear(16, 8), nn.Tanh(), nn.Linear(8, NUM_OUTPUTS)]
    return nn.Sequential(*layers).double()


def make_sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def make_adam(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.Adam(parameters, lr=0.01)


def batch(step: int, rank: int, rows: int = ROWS_PER_RANK) -> tuple[Tensor, Tensor]:
    """Return a rank's inputs and targets."""
    generator = torch.Generator().manual_seed(1000 * step + rank)
    inputs = torch.randn(rows, NUM_INPUTS, dtype=torch.float64, generator=generator)
    return inputs, torch.randn(rows, NUM_OUTPUTS, dtype=torch.float64, generator=generator)


def whole_batch(step: int, ranks: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Return what these ranks have together."""
    parts = [batch(step, rank) for rank in ranks]
    return torch.cat([inputs for inputs, _ in parts]), torch.cat([targets for _, targets in parts])


def loss_of(model: Callable[[Tensor], Tensor], inputs: Tensor, targets: Tensor) -> Any:
    return nn.functional.mse_loss(model(inputs), targets)


def train_alone(num_ranks: int, make_optimizer: MakeOptimizer = make_sgd) -> dict[str, Tensor]:
    """Train on the batches of all ranks in one process, and return the parameters."""
    model = make_model()
    optimizer = make_optimizer(model.parameters())
    for step in range(NUM_STEPS):
        optimizer.zero_grad()
        loss_of(model, *whole_batch(step, range(num_ranks))).backward()
        optimizer.step()
    return parameters_of(model)


def train_spread(model: nn.Module, rank: int, make_optimizer: MakeOptimizer = make_sgd) -> None:
    """Train a model that knows how to spread itself on this rank's batches."""
    optimizer = make_optimizer(model.parameters())
    for step in range(NUM_STEPS):
        optimizer.zero_grad()
        loss_of(model, *batch(step, rank)).backward()
        optimizer.step()


def parameters_of(model: nn.Module) -> dict[str, Tensor]:
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def whole(tensors: dict[str, Any]) -> dict[str, Tensor]:
    """Bring together what is spread; all ranks must call it."""
    return {
        name: tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor for name, tensor in tensors.items()
    }


def gradients_of(model: nn.Module) -> dict[str, Tensor]:
    return {name: p.grad.detach().clone() for name, p in model.named_parameters() if p.grad is not None}
