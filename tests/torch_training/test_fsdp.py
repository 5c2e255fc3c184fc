from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecisionPolicy, fully_shard

from tests.torch_training import reference_training as reference
from tests.torch_training.closeness import all_close, close
from tests.torch_training.training_ranks import trains_on

pytestmark = trains_on(2)


def _shard(shape: tuple[int, ...], **options: Any) -> Any:
    return _shard_over(init_device_mesh("cpu", shape, mesh_dim_names=("replicate", "shard")[-len(shape) :]), **options)


def _shard_over(mesh: DeviceMesh, **options: Any) -> Any:
    model = reference.make_model()
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh, **options)
    return fully_shard(model, mesh=mesh, **options)


def _train_on(shape: tuple[int, ...], rank: int) -> None:
    num_ranks = torch.Size(shape).numel()
    num_copies = num_ranks // shape[-1]
    expected = reference.train_alone(num_ranks, reference.make_adam)
    for is_resharded in (True, False):
        model = _shard(shape, reshard_after_forward=is_resharded)
        reference.train_spread(model, rank, reference.make_adam)
        all_close(reference.whole(reference.parameters_of(model)), expected)
        held = torch.tensor(sum(parameter.to_local().numel() for parameter in model.parameters()))
        dist.all_reduce(held)
        assert held == num_copies * sum(tensor.numel() for tensor in expected.values())


@pytest.mark.ranks([2, 3])
def test_fsdp_trains_like_one_process(rank: int, world_size: int) -> None:
    _train_on((world_size,), rank)


@pytest.mark.ranks(4)
def test_hsdp_trains_like_one_process(rank: int) -> None:
    """The first axis of the mesh copies, the second shards."""
    _train_on((2, 2), rank)


def test_the_older_fsdp_trains_like_one_process(rank: int) -> None:
    model = FullyShardedDataParallel(reference.make_model(), device_id=torch.device("cpu"))
    reference.train_spread(model, rank)
    with FullyShardedDataParallel.summon_full_params(model):
        parameters = reference.parameters_of(model)
    named = {name.removeprefix("_fsdp_wrapped_module."): its for name, its in parameters.items()}
    all_close(named, reference.train_alone(2))


def test_gradients_are_clipped_by_the_norm_over_all_shards(rank: int) -> None:
    model, alone = _shard((2,)), reference.make_model()
    reference.loss_of(model, *reference.batch(0, rank)).backward()
    reference.loss_of(alone, *reference.whole_batch(0, range(2))).backward()
    norm: Any = nn.utils.clip_grad_norm_(model.parameters(), 0.01)
    close(norm.full_tensor(), nn.utils.clip_grad_norm_(alone.parameters(), 0.01))
    all_close(reference.whole(reference.gradients_of(model)), reference.gradients_of(alone))


def test_accumulating_without_a_reduction_gives_the_same_gradients(rank: int) -> None:
    model, alone = _shard((2,)), reference.make_model()
    for step in range(3):
        model.set_requires_gradient_sync(step == 2)
        reference.loss_of(model, *reference.batch(step, rank)).backward()
        reference.loss_of(alone, *reference.whole_batch(step, range(2))).backward()
    all_close(reference.whole(reference.gradients_of(model)), reference.gradients_of(alone))


def test_mixed_precision_trains_as_it_does_over_gloo(process_group: Any, rank: int) -> None:
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32, output_dtype=torch.float64)

    def train(group: Any) -> dict[str, Tensor]:
        model = _shard_over(DeviceMesh.from_group(group, "cpu"), mp_policy=policy)
        reference.train_spread(model, rank)
        return reference.whole(reference.parameters_of(model))

    all_close(train(process_group), train(dist.new_group(backend="gloo")))
