"""Whether the gradients that DDP leaves are the means of all ranks' own: each parameter is judged by its own size.

A backward repeats itself only as far as its arithmetic does. In float32 that is far enough to compare every value. With
bfloat16 one rounding changes single values by a tenth of the largest: there a parameter's values are judged together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from phalanx.collectives import Group, ReduceOp
from phalanx_tools.bench.gpu.turns import Turns

_LOOKED_AT = 1024  # values of every gradient that ranks show each other
_FLOAT32 = 2e-4  # of a parameter's largest value
_BFLOAT16 = 0.1  # of the norm of a parameter's values

Gradients = list[Tensor]
Backward = Callable[[bool, bool], None]


def gradients_of(model: nn.Module) -> Gradients:
    """Return copies of all gradients, flat.

    Raises:
        ValueError: A parameter has none.
    """
    copies = []
    for name, parameter in model.named_parameters():
        if parameter.grad is None:
            raise ValueError(f"{name} has no gradient")
        copies.append(parameter.grad.detach().flatten().clone())
    return copies


def sample(gradient: Tensor) -> Tensor:
    """Return values from all over a flat gradient, the first and the last among them, in float64 on the host."""
    count = min(gradient.numel(), _LOOKED_AT)
    places = torch.arange(count) * (gradient.numel() - 1) // max(1, count - 1)
    return gradient[places.to(gradient.device)].double().cpu()


def wrong_values(found: Sequence[Tensor], wanted: Sequence[Tensor], scales: Sequence[float]) -> list[int]:
    """Return the numbers of the parameters of which a value is wrong, for gradients in float32.

    Args:
        scales: The largest value of each parameter's gradient on any rank, before the mean.
    """
    return [
        number
        for number, (own, right, scale) in enumerate(zip(found, wanted, scales, strict=True))
        if not bool(((own - right).abs() <= _FLOAT32 * scale).all())  # a NaN is wrong, too
    ]


def wrong_as_a_whole(found: Sequence[Tensor], own_of_ranks: Sequence[Sequence[Tensor]]) -> list[int]:
    """Return the numbers of the parameters whose sampled values are not the ranks' mean, for gradients in bfloat16."""
    wrong = []
    for number, (left, *own) in enumerate(zip(found, *own_of_ranks, strict=True)):
        scale = max(float(one.norm()) for one in own)
        if not float((left - torch.stack(own).mean(0)).norm()) <= _BFLOAT16 * scale:
            wrong.append(number)
    return wrong


def find_wrong(backward: Backward, model: nn.Module, turns: Turns, group: Group) -> list[str]:
    """Return the names of the parameters whose gradients are not the mean on some rank.

    What is wanted comes from the ranks' own gradients, without DDP: samples go by host memory and are averaged in
    float64; in float32 every value is compared with a mean that the group makes by hand.

    Args:
        backward: Leaves gradients in the model; is told whether to keep silent, and whether to stay in float32.
        group: Not the one that DDP uses.

    Raises:
        RanksDisagreeError: A step failed somewhere.
    """
    runs = _Runs(backward, model, turns)
    numbers = set(_find_in_float32(runs, turns, group)) | set(_find_in_bfloat16(runs, turns))
    names = [name for name, _ in model.named_parameters()]
    return [names[number] for number in sorted(numbers)]


class _Runs:
    def __init__(self, backward: Backward, model: nn.Module, turns: Turns) -> None:
        self._backward = backward
        self._model = model
        self._turns = turns

    def gradients(self, *, is_silent: bool, is_float32: bool) -> Gradients:
        left: Gradients = []

        def run() -> None:
            self._backward(is_silent, is_float32)
            left.extend(gradients_of(self._model))

        self._turns.agree(run)
        return left


def _find_in_float32(runs: _Runs, turns: Turns, group: Group) -> list[int]:
    own = runs.gradients(is_silent=True, is_float32=True)
    samples = turns.agree(lambda: [sample(gradient) for gradient in own])
    largest = turns.agree(lambda: [float(gradient.abs().max()) for gradient in own])
    scales = [max(values) for values in zip(*largest, strict=True)]
    flat = torch.cat(own)

    def average() -> None:
        group.all_reduce(flat, ReduceOp.AVG)

    turns.agree(average)
    wanted = flat.split([gradient.numel() for gradient in own])
    means = [torch.stack(values).mean(0) for values in zip(*samples, strict=True)]
    found = runs.gradients(is_silent=False, is_float32=True)

    def compare() -> list[int]:
        sampled = [sample(gradient) for gradient in found]
        return wrong_values(found, wanted, scales) + wrong_values(sampled, means, scales)

    return _joined(turns.agree(compare))


def _find_in_bfloat16(runs: _Runs, turns: Turns) -> list[int]:
    own = [sample(gradient) for gradient in runs.gradients(is_silent=True, is_float32=False)]
    own_of_ranks = turns.agree(lambda: own)
    found = [sample(gradient) for gradient in runs.gradients(is_silent=False, is_float32=False)]
    return _joined(turns.agree(lambda: wrong_as_a_whole(found, own_of_ranks)))


def _joined(of_ranks: Sequence[Sequence[int]]) -> list[int]:
    return [number for numbers in of_ranks for number in numbers]
