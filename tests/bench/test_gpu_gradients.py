"""Wrong gradients of a single parameter are found, however small it is beside others."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from phalanx.groups.connect import connect
from phalanx.torch_backend.untyped import dist
from phalanx_tools.bench.gpu import gradients
from phalanx_tools.bench.gpu.training import Shape, Transformer
from phalanx_tools.bench.gpu.turns import Turns
from tests.run_ranks import run_ranks

_RANKS = 4
_SHAPE = Shape(layers=2, width=32, heads=2, vocabulary=256, tokens=16)
Spoil = Callable[[list[Tensor]], Tensor]

# What can become of one parameter's gradients, given those of all ranks: what DDP leaves on rank 0.
_SPOILT: dict[str, Spoil] = {
    "zero": lambda own: torch.zeros_like(own[0]),
    "not reduced": lambda own: own[0],
    "summed": lambda own: torch.stack(own).sum(0),
    "without a rank": lambda own: torch.stack(own[1:]).sum(0) / len(own),
    "not a number": lambda own: torch.full_like(own[0], float("nan")),
}


@cache
def _own() -> list[list[Tensor]]:
    """Return every rank's gradients."""
    torch.manual_seed(0)
    model = Transformer(_SHAPE)
    of_ranks = []
    for rank in range(_RANKS):
        tokens = torch.randint(_SHAPE.vocabulary, (2, _SHAPE.tokens), generator=torch.Generator().manual_seed(rank))
        model.zero_grad()
        model(tokens).backward()
        of_ranks.append(gradients.gradients_of(model))
    return of_ranks


def _means() -> list[Tensor]:
    return [torch.stack(own).mean(0) for own in zip(*_own(), strict=True)]


def _scales() -> list[float]:
    return [max(float(one.abs().max()) for one in own) for own in zip(*_own(), strict=True)]


def _samples(of_parameters: list[Tensor]) -> list[Tensor]:
    return [gradients.sample(gradient) for gradient in of_parameters]


def test_means_are_right() -> None:
    means = _means()
    assert gradients.wrong_values(means, means, _scales()) == []
    rounded = [sum(own[1:], own[0]) / _RANKS for own in zip(*_own(), strict=True)]
    assert gradients.wrong_values(rounded, means, _scales()) == []
    assert gradients.wrong_as_a_whole(_samples(means), [_samples(own) for own in _own()]) == []


@pytest.mark.parametrize("what", _SPOILT)
def test_a_single_wrong_parameter_is_found(what: str) -> None:
    samples, scales = [_samples(own) for own in _own()], _scales()
    for number in range(len(scales)):
        found = _means()
        found[number] = _SPOILT[what]([own[number] for own in _own()])
        assert gradients.wrong_values(found, _means(), scales) == [number]
        assert gradients.wrong_values(_samples(found), _samples(_means()), scales) == [number]
        assert gradients.wrong_as_a_whole(_samples(found), samples) == [number]


def test_a_single_wrong_value_is_found_in_float32() -> None:
    for number, scale in enumerate(_scales()):
        for place in (0, len(_means()[number]) // 2, -1):
            found = _means()
            found[number][place] += 0.001 * scale
            assert gradients.wrong_values(found, _means(), _scales()) == [number]


@pytest.mark.parametrize("count", [1, 2, 1023, 1024, 1025, 300_001])
def test_a_sample_goes_from_the_first_value_to_the_last(count: int) -> None:
    places = gradients.sample(torch.arange(float(count)))
    assert (float(places[0]), float(places[-1])) == (0, count - 1)
    assert len(places) == min(count, 1024)
    assert len(places) < 2 or places.diff().max() - places.diff().min() <= 1


def test_a_parameter_without_a_gradient_is_named() -> None:
    with pytest.raises(ValueError, match=r"^bias has no gradient"):
        gradients.gradients_of(_without_bias_gradient())


def _without_bias_gradient() -> nn.Module:
    model = nn.LayerNorm(4)
    model.weight.grad = torch.ones(4)
    return model


class _Backward:
    """Gradients of DDP, of which one is spoilt when ranks communicate."""

    def __init__(self, spoilt: str, tokens: Tensor) -> None:
        self.model = Transformer(_SHAPE)
        self._spoilt = spoilt
        self._tokens = tokens
        self._distributed = nn.parallel.DistributedDataParallel(self.model, gradient_as_bucket_view=True)

    def run(self, is_silent: bool, is_float32: bool) -> None:
        self.model.zero_grad()
        if is_silent:
            with self._distributed.no_sync():
                self._distributed(self._tokens).backward()
            return
        self._distributed(self._tokens).backward()
        if self._spoilt and dist.get_rank() == 1:
            gradient = self.model.get_parameter(self._spoilt).grad
            assert gradient is not None
            gradient.view(-1)[-1] *= 2


def _find(folder: str, spoilt: str) -> list[str]:
    torch.set_num_threads(1)
    group = connect()
    dist.init_process_group("phalanx", init_method=f"file://{folder}/store", rank=group.rank, world_size=group.size)
    torch.manual_seed(0)
    random = torch.Generator().manual_seed(group.rank)
    backward = _Backward(spoilt, torch.randint(_SHAPE.vocabulary, (2, _SHAPE.tokens), generator=random))
    turns = Turns(connect(name="control"), torch.device("cpu"))
    found = gradients.find_wrong(backward.run, backward.model, turns, group)
    dist.destroy_process_group()
    return found


@pytest.mark.slow
@pytest.mark.parametrize("spoilt", ["", "layers.1.norm2.bias"])
def test_every_rank_learns_which_gradient_ddp_left_wrong_on_one(tmp_path: Path, spoilt: str) -> None:
    told: list[Any] = run_ranks("process", 2, _find, str(tmp_path), spoilt)
    assert told == [[spoilt] if spoilt else []] * 2
