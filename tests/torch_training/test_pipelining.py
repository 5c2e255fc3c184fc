from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import pipelining

from tests.torch_training import reference_training as reference
from tests.torch_training.closeness import all_close, close
from tests.torch_training.training_ranks import trains_on

pytestmark = trains_on(2)

NUM_MICROBATCHES = 4
ROWS = 8


def _stages(num_stages: int) -> list[nn.Module]:
    """Cut the model; parameters keep their names."""
    model = reference.make_model()
    layers = list(model.named_children())
    cuts = {2: [0, 2, 5], 4: [0, 1, 2, 3, 5]}[num_stages]
    stages: list[nn.Module] = []
    for start, end in pairwise(cuts):
        stage = nn.Sequential()
        for name, layer in layers[start:end]:
            stage.add_module(name, layer)
        stages.append(stage)
    return stages


def _batch(step: int) -> tuple[Tensor, Tensor]:
    return reference.batch(step, 0, ROWS)


def _run(schedule: Any, rank: int, is_last: bool, step: int) -> tuple[Any, list[Tensor]]:
    inputs, targets = _batch(step)
    losses: list[Tensor] = []
    given = (inputs,) if rank == 0 else ()
    aims: dict[str, Any] = {"target": targets, "losses": losses} if is_last else {}
    return schedule.step(*given, **aims), losses


def _train_alone() -> tuple[dict[str, Tensor], list[Tensor], list[Tensor]]:
    model = reference.make_model()
    optimizer = reference.make_sgd(model.parameters())
    outputs, losses = [], []
    for step in range(reference.NUM_STEPS):
        optimizer.zero_grad()
        inputs, targets = _batch(step)
        outputs.append(model(inputs).detach())
        loss = reference.loss_of(model, inputs, targets)
        loss.backward()
        losses.append(loss.detach())
        optimizer.step()
    return reference.parameters_of(model), outputs, losses


def _check_parameters(own: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    """Check this rank's part, and that the ranks have every parameter once."""
    all_close(own, {name: expected[name] for name in own})
    names: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(names, list(own))
    assert sorted(name for of_rank in names for name in of_rank) == sorted(expected)


@pytest.mark.parametrize("name", ["ScheduleGPipe", "Schedule1F1B"])
def test_a_pipeline_of_one_stage_a_rank_trains_like_one_process(rank: int, name: str) -> None:
    expected_parameters, expected_outputs, expected_losses = _train_alone()
    module = _stages(2)[rank]
    stage = pipelining.PipelineStage(module, rank, 2, torch.device("cpu"))
    schedule = getattr(pipelining, name)(stage, NUM_MICROBATCHES, loss_fn=nn.functional.mse_loss)
    optimizer = reference.make_sgd(module.parameters())
    for step in range(reference.NUM_STEPS):
        optimizer.zero_grad()
        output, of_microbatches = _run(schedule, rank, rank == 1, step)
        if rank == 1:
            close(output, expected_outputs[step], step)
            close(torch.stack(of_microbatches).mean(), expected_losses[step], step)
        optimizer.step()
    _check_parameters(reference.parameters_of(module), expected_parameters)


def test_an_interleaved_pipeline_of_two_stages_a_rank_trains_like_one_process(rank: int) -> None:
    modules = [_stages(4)[at] for at in (rank, rank + 2)]
    stages = [
        pipelining.PipelineStage(module, at, 4, torch.device("cpu"))
        for module, at in zip(modules, (rank, rank + 2), strict=True)
    ]
    schedule = pipelining.ScheduleInterleaved1F1B(stages, NUM_MICROBATCHES, loss_fn=nn.functional.mse_loss)  # type: ignore[arg-type]
    optimizer = reference.make_sgd(nn.ModuleList(modules).parameters())
    for step in range(reference.NUM_STEPS):
        optimizer.zero_grad()
        _run(schedule, rank, rank == 1, step)
        optimizer.step()
    own = reference.parameters_of(modules[0]) | reference.parameters_of(modules[1])
    _check_parameters(own, _train_alone()[0])
