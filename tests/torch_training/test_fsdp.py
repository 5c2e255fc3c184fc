from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.torch_training import reference_training as reference
from tests.torch_training.training_ranks import all_close, close, train

pytestmark = pytest.mark.slow

# The shape of the mesh: one number shards over all ranks; with two, the first copies and the second shards (HSDP).
MESHES: dict[str, tuple[int, ...]] = {"fsdp_2": (2,), "fsdp_3": (3,), "hsdp_2x2": (2, 2)}


def _shard(shape: tuple[int, ...], **options: Any) -> Any:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    names = ("replicate", "shard")[-len(shape) :]
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=names)
    model = reference.make_model()
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh, **options)
    return fully_shard(model, mesh=mesh, **options)


@pytest.mark.parametrize("mesh", MESHES)
def test_fsdp_trains_like_one_process(mesh: str) -> None:
    shape = MESHES[mesh]

    def program(rank: int) -> list[tuple[dict[str, Tensor], int]]:
        results = []
        for is_resharded in (True, False):
            model = _shard(shape, reshard_after_forward=is_resharded)
            reference.train_spread(model, rank, reference.make_adam)
            held = sum(parameter.to_local().numel() for parameter in model.parameters())
            results.append((reference.whole(reference.parameters_of(model)), held))
        return results

    num_ranks = torch.Size(shape).numel()
    num_copies = num_ranks // shape[-1]
    expected = reference.train_alone(num_ranks, reference.make_adam)
    for results in zip(*train(num_ranks, program), strict=True):
        for parameters, _ in results:
            all_close(parameters, expected)
        assert sum(held for _, held in results) == num_copies * sum(tensor.numel() for tensor in expected.values())


def test_the_older_fsdp_trains_like_one_process() -> None:
    def program(rank: int) -> dict[str, Tensor]:
        from torch.distributed.fsdp import FullyShardedDataParallel

        model = FullyShardedDataParallel(reference.make_model(), device_id=torch.device("cpu"))
        reference.train_spread(model, rank)
        with FullyShardedDataParallel.summon_full_params(model):
            return reference.parameters_of(model)

    expected = reference.train_alone(2)
    for parameters in train(2, program):
        all_close({name.removeprefix("_fsdp_wrapped_module."): its for name, its in parameters.items()}, expected)


def test_gradients_are_clipped_by_the_norm_over_all_shards() -> None:
    def program(rank: int) -> tuple[Tensor, dict[str, Tensor]]:
        model = _shard((2,))
        reference.loss_of(model, *reference.batch(0, rank)).backward()
        norm: Any = nn.utils.clip_grad_norm_(model.parameters(), 0.01)
        return norm.full_tensor(), reference.whole(reference.gradients_of(model))

    model = reference.make_model()
    reference.loss_of(model, *reference.whole_batch(0, range(2))).backward()
    expected_norm = nn.utils.clip_grad_norm_(model.parameters(), 0.01)
    for norm, gradients in train(2, program):
        close(norm, expected_norm)
        all_close(gradients, reference.gradients_of(model))


def test_accumulating_without_a_reduction_gives_the_same_gradients() -> None:
    def program(rank: int) -> dict[str, Tensor]:
        model = _shard((2,))
        for step in range(3):
            model.set_requires_gradient_sync(step == 2)
            reference.loss_of(model, *reference.batch(step, rank)).backward()
        return reference.whole(reference.gradients_of(model))

    model = reference.make_model()
    for step in range(3):
        reference.loss_of(model, *reference.whole_batch(step, range(2))).backward()
    for gradients in train(2, program):
        all_close(gradients, reference.gradients_of(model))


def test_mixed_precision_trains_as_it_does_over_gloo() -> None:
    def program(rank: int) -> dict[str, Tensor]:
        from torch.distributed.fsdp import MixedPrecisionPolicy

        policy = MixedPrecisionPolicy(
            param_dtype=torch.bfloat16, reduce_dtype=torch.float32, output_dtype=torch.float64
        )
        model = _shard((2,), mp_policy=policy)
        reference.train_spread(model, rank)
        return reference.whole(reference.parameters_of(model))

    expected, _ = train(2, program, backend="gloo")
    for parameters in train(2, program):
        all_close(parameters, expected)
