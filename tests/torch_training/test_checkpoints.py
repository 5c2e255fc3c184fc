from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from tests.torch_training import reference_training as reference
from tests.torch_training.training_ranks import all_close, close, train

pytestmark = pytest.mark.slow


def _sharded(rank: int) -> tuple[Any, torch.optim.Optimizer]:
    """Return a model and an optimizer that have been trained for some steps."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    model: Any = fully_shard(reference.make_model(), mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    optimizers: list[torch.optim.Optimizer] = []

    def make(parameters: Any) -> torch.optim.Optimizer:
        optimizers.append(reference.make_adam(parameters))
        return optimizers[0]

    reference.train_spread(model, rank % 2, make)
    return model, optimizers[0]


def _save(rank: int, folder: Path) -> None:
    from torch.distributed.checkpoint import state_dict_saver
    from torch.distributed.checkpoint.state_dict import get_state_dict

    model, optimizer = _sharded(rank)
    model_state, optimizer_state = get_state_dict(model, optimizer)
    state_dict_saver.save({"model": model_state, "optimizer": optimizer_state, "step": 17}, checkpoint_id=folder)


def _load_and_train_on(rank: int, folder: Path) -> tuple[dict[str, Tensor], dict[str, Tensor], int]:
    from torch.distributed.checkpoint import state_dict_loader
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

    model, optimizer = _sharded(rank)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    model_state, optimizer_state = get_state_dict(model, optimizer)
    state = {"model": model_state, "optimizer": optimizer_state, "step": 0}
    state_dict_loader.load(state, checkpoint_id=folder)
    set_state_dict(model, optimizer, model_state_dict=model_state, optim_state_dict=optimizer_state)
    loaded = reference.whole(reference.parameters_of(model))
    optimizer.zero_grad()
    reference.loss_of(model, *reference.batch(50, rank % 2)).backward()
    optimizer.step()
    return loaded, reference.whole(reference.parameters_of(model)), int(state["step"])  # type: ignore[call-overload]


@pytest.mark.parametrize("ranks_that_load", [2, 4])
def test_a_sharded_checkpoint_goes_on_where_one_process_would(ranks_that_load: int, tmp_path: Path) -> None:
    """Four ranks hold other shards than the two that saved; they see every batch twice, so the mean is the same."""
    train(2, _save, tmp_path)
    results = train(ranks_that_load, _load_and_train_on, tmp_path)

    model = reference.make_model()
    optimizer = reference.make_adam(model.parameters())
    for step in [*range(reference.NUM_STEPS), 50]:
        before = reference.parameters_of(model)
        optimizer.zero_grad()
        reference.loss_of(model, *reference.whole_batch(step, range(2))).backward()
        optimizer.step()
    for loaded, trained, step in results:
        assert step == 17
        all_close(loaded, before)
        all_close(trained, reference.parameters_of(model))


def test_a_checkpoint_is_readable_without_any_process_group(tmp_path: Path) -> None:
    from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

    train(2, _save, tmp_path / "sharded")
    dcp_to_torch_save(tmp_path / "sharded", tmp_path / "whole.pt")
    state = torch.load(tmp_path / "whole.pt")
    all_close(state["model"], reference.train_alone(2, reference.make_adam))


def test_an_asynchronous_save_keeps_the_state_of_its_call(tmp_path: Path) -> None:
    """The ranks use the group's collectives while the checkpoint's thread uses its own."""

    def program(rank: int, folder: Path) -> None:
        from torch.distributed.checkpoint import state_dict_loader, state_dict_saver

        state = {f"rank {rank}": torch.full((1000,), rank + 1.0)}
        own_group = dist.new_group(backend=dist.get_backend())
        saving: Any = state_dict_saver.async_save(dict(state), checkpoint_id=folder, process_group=own_group)
        state[f"rank {rank}"].zero_()
        for _ in range(100):
            tensor = torch.ones(100)
            dist.all_reduce(tensor)
            close(tensor, torch.full((100,), 2.0))
        saving.result(timeout=30)
        dist.barrier()
        loaded = {f"rank {other}": torch.zeros(1000) for other in range(2)}
        state_dict_loader.load(loaded, checkpoint_id=folder)
        for other in range(2):
            close(loaded[f"rank {other}"], torch.full((1000,), other + 1.0), other)

    train(2, program, tmp_path)
