from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import BuiltinCommHookType
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook, fp16_compress_hook
from torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook import PostLocalSGDState, post_localSGD_hook
from torch.distributed.algorithms.ddp_comm_hooks.quantization_hooks import quantization_pertensor_hook
from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
from torch.nn.parallel import DistributedDataParallel

from tests.torch_training import reference_training as reference
from tests.torch_training.averaging_hook import register_averaging_hook
from tests.torch_training.closeness import all_close
from tests.torch_training.training_ranks import trains_on

NUM_RANKS = 2
pytestmark = trains_on(NUM_RANKS)
# Groups of Gloo that a rank keeps until it ends. A callback of a future holds its group, and runs on Gloo's own thread:
# if that thread drops the last reference, torch ends the process ("Resource deadlock avoided").
_KEPT: list[Any] = []


def _register_allreduce(ddp: Any) -> None:
    ddp.register_comm_hook(None, allreduce_hook)


def _register_fp16(ddp: Any) -> None:
    ddp.register_comm_hook(None, fp16_compress_hook)


def _register_builtin(name: str) -> Callable[[Any], None]:
    return lambda ddp: ddp._register_builtin_comm_hook(getattr(BuiltinCommHookType, name))


EXACT: dict[str, Callable[[Any], None]] = {
    "allreduce_hook": _register_allreduce,
    "builtin_allreduce": _register_builtin("ALLREDUCE"),
    "own_hook": lambda ddp: register_averaging_hook(ddp, NUM_RANKS),
}
HALF: dict[str, Callable[[Any], None]] = {
    "fp16_compress_hook": _register_fp16,
    "builtin_fp16_compress": _register_builtin("FP16_COMPRESS"),
}


def test_hooks_that_average_train_like_one_process(rank: int) -> None:
    expected = reference.train_alone(NUM_RANKS)
    for name, register in EXACT.items():
        ddp = DistributedDataParallel(reference.make_model(), bucket_cap_mb=0.001)
        register(ddp)
        reference.train_spread(ddp, rank)
        all_close(reference.parameters_of(ddp.module), expected, name)


def _local_gradients(rank: int, step: int) -> dict[str, Tensor]:
    model = reference.make_model().float()
    inputs, targets = reference.batch(step, rank)
    reference.loss_of(model, inputs.float(), targets.float()).backward()
    return reference.gradients_of(model)


def test_compressed_gradients_are_the_sum_of_halves(rank: int) -> None:
    for hook, register in HALF.items():
        ddp = DistributedDataParallel(reference.make_model().float(), bucket_cap_mb=0.001)
        register(ddp)
        for step in range(3):
            ddp.zero_grad()
            inputs, targets = reference.batch(step, rank)
            reference.loss_of(ddp, inputs.float(), targets.float()).backward()
            first, second = (_local_gradients(other, step) for other in range(NUM_RANKS))
            expected = {name: (first[name].half() / 2 + second[name].half() / 2).float() for name in first}
            all_close(reference.gradients_of(ddp.module), expected, hook, tolerance=1e-7)


def test_power_sgd_trains_as_it_does_over_gloo(process_group: Any, rank: int) -> None:
    """Its compression has no counterpart in one process."""

    def train(group: Any) -> dict[str, Tensor]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(6, 40), nn.Tanh(), nn.Linear(40, 40), nn.Tanh(), nn.Linear(40, 3)).double()
        ddp = DistributedDataParallel(model, process_group=group)
        state: Any = powerSGD_hook.PowerSGDState(
            group, matrix_approximation_rank=1, start_powerSGD_iter=2, min_compression_rate=1
        )
        ddp.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
        optimizer = reference.make_sgd(ddp.parameters())
        for step in range(6):
            optimizer.zero_grad()
            reference.loss_of(ddp, *reference.batch(step, rank)).backward()
            optimizer.step()
        assert state.compression_stats()[0] > 2, "it did not compress"
        return reference.parameters_of(ddp.module)

    _KEPT.append(dist.new_group(backend="gloo"))
    all_close(train(process_group), train(_KEPT[-1]))


def test_quantized_gradients_are_those_of_one_process_but_for_a_step_of_quantization(
    process_group: Any, rank: int
) -> None:
    ddp = DistributedDataParallel(reference.make_model().float())
    ddp.register_comm_hook(process_group, quantization_pertensor_hook)
    inputs, targets = reference.batch(0, rank)
    reference.loss_of(ddp, inputs.float(), targets.float()).backward()

    first, second = (_local_gradients(other, 0) for other in range(NUM_RANKS))
    both = [*first.values(), *second.values()]
    step = float(max(gradient.max() for gradient in both) - min(gradient.min() for gradient in both)) / 255
    gradients = reference.gradients_of(ddp.module)
    assert list(gradients) == list(first)
    for name, gradient in gradients.items():
        assert 0 < (gradient - (first[name] + second[name]) / 2).abs().max() <= step, name


@pytest.mark.ranks(4)
def test_local_sgd_averages_in_subgroups_and_now_and_then_over_all(rank: int) -> None:
    """Four ranks in two subgroups; the reference holds one model for each subgroup."""
    from torch.distributed.optim import PostLocalSGDOptimizer

    subgroup, _ = dist.new_subgroups(2)
    ddp = DistributedDataParallel(reference.make_model())
    ddp.register_comm_hook(PostLocalSGDState(None, subgroup, 0), post_localSGD_hook)
    averager = PeriodicModelAverager(period=2, warmup_steps=0)
    reference.train_spread(ddp, rank, lambda given: PostLocalSGDOptimizer(reference.make_sgd(given), averager))

    models = [reference.make_model() for _ in range(2)]
    optimizers = [reference.make_sgd(model.parameters()) for model in models]
    for step in range(reference.NUM_STEPS):
        for at, (model, optimizer) in enumerate(zip(models, optimizers, strict=True)):
            optimizer.zero_grad()
            reference.loss_of(model, *reference.whole_batch(step, [2 * at, 2 * at + 1])).backward()
            optimizer.step()
        if step % 2 == 0:
            with torch.no_grad():
                for one, other in zip(models[0].parameters(), models[1].parameters(), strict=True):
                    one.copy_((one + other) / 2)
                    other.copy_(one)
    all_close(reference.parameters_of(ddp.module), reference.parameters_of(models[rank // 2]))
