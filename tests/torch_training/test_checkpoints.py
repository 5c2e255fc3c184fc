from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.checkpoint import state_dict_loader, state_dict_saver
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard

from tests.torch_training import reference_training as reference
from tests.torch_training.closeness import all_close, close
from tests.torch_training.training_ranks import trains_on

pytestmark = trains_on(2)


def _sharded(mesh: DeviceMesh, rank: int) -> tuple[Any, torch.optim.Optimizer]:
    """Return a model and an optimizer that have been trained for some steps."""
    model: Any = fully_shard(reference.make_model(), mesh=mesh)
    optimizers: list[torch.optim.Optimizer] = []

    def make(parameters: Any) -> torch.optim.Optimizer:
        optimizers.append(reference.make_adam(parameters))
        return optimizers[0]

    reference.train_spread(model, rank % 2, make)
    return model, optimizers[0]


def _save(rank: int, folder: Path) -> None:
    """Have the first two ranks save; the others wait."""
    mesh = DeviceMesh("cpu", [0, 1])
    if rank < 2:
        model_state, optimizer_state = get_state_dict(*_sharded(mesh, rank))
        state = {"model": model_state, "optimizer": optimizer_state, "step": 17}
        state_dict_saver.save(state, checkpoint_id=folder, process_group=mesh.get_group())
    dist.barrier()


@pytest.mark.ranks([2, 4])
def test_a_sharded_checkpoint_goes_on_where_one_process_would(rank: int, world_size: int, tmp_path: Path) -> None:
    """Four ranks hold other shards than the two that saved; they see every batch twice, so the mean is the same."""
    _save(rank, tmp_path)
    model, optimizer = _sharded(DeviceMesh("cpu", list(range(world_size))), rank)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    model_state, optimizer_state = get_state_dict(model, optimizer)
    state: dict[str, Any] = {"model": model_state, "optimizer": optimizer_state, "step": 0}
    state_dict_loader.load(state, checkpoint_id=tmp_path)
    set_state_dict(model, optimizer, model_state_dict=model_state, optim_state_dict=optimizer_state)
    assert state["step"] == 17
    loaded = reference.whole(reference.parameters_of(model))
    optimizer.zero_grad()
    reference.loss_of(model, *reference.batch(50, rank % 2)).backward()
    optimizer.step()

    alone = reference.make_model()
    optimizer = reference.make_adam(alone.parameters())
    for step in [*range(reference.NUM_STEPS), 50]:
        before = reference.parameters_of(alone)
        optimizer.zero_grad()
        reference.loss_of(alone, *reference.whole_batch(step, range(2))).backward()
        optimizer.step()
    all_close(loaded, before)
    all_close(reference.whole(reference.parameters_of(model)), reference.parameters_of(alone))


def test_a_checkpoint_is_readable_without_any_process_group(rank: int, tmp_path: Path, rank_tmp_path: Path) -> None:
    _save(rank, tmp_path / "sharded")
    dist.destroy_process_group()
    dcp_to_torch_save(tmp_path / "sharded", rank_tmp_path / "whole.pt")
    state = torch.load(rank_tmp_path / "whole.pt")
    all_close(state["model"], reference.train_alone(2, reference.make_adam))


def test_an_asynchronous_save_keeps_the_state_of_its_call(rank: int, tmp_path: Path) -> None:
    """The ranks use the group's collectives while the checkpoint's thread uses its own."""
    state = {f"rank {rank}": torch.full((1000,), rank + 1.0)}
    own_group = dist.new_group(backend=dist.get_backend())
    saving: Any = state_dict_saver.async_save(dict(state), checkpoint_id=tmp_path, process_group=own_group)
    state[f"rank {rank}"].zero_()
    for _ in range(100):
        tensor = torch.ones(100)
        dist.all_reduce(tensor)
        close(tensor, torch.full((100,), 2.0))
    saving.result(timeout=30)
    dist.barrier()
    loaded = {f"rank {other}": torch.zeros(1000) for other in range(2)}
    state_dict_loader.load(loaded, checkpoint_id=tmp_path)
    for other in range(2):
        close(loaded[f"rank {other}"], torch.full((1000,), other + 1.0), other)
