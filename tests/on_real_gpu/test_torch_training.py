"""DDP, FSDP2, tensor and pipeline parallel on a real GPU that several ranks share, against one process."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._C._distributed_c10d import BuiltinCommHookType
from torch.distributed import pipelining
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

from tests.on_real_gpu.gpu_ranks import on_gpu, through_torch
from tests.torch_training import reference_training as reference
from tests.torch_training.averaging_hook import register_averaging_hook
from tests.torch_training.closeness import all_close

pytestmark = through_torch(4)

WAYS: dict[str, dict[str, Any]] = {
    "plain": {},
    "static_graph": {"static_graph": True},
    "find_unused_parameters": {"find_unused_parameters": True},
    "a_bucket_for_each_parameter": {"bucket_cap_mb": 1e-6, "gradient_as_bucket_view": True},
}


@pytest.fixture(autouse=True)
def _cuda_is_in_use(device: torch.device) -> None:
    """A mesh would choose a GPU by itself."""
    torch.cuda.init()


class FromHost(nn.Module):
    """A model on a GPU that takes inputs from the host and brings the outputs back."""

    def __init__(self, model: Any, device: torch.device) -> None:
        super().__init__()
        self.model = model
        self._device = device

    def forward(self, inputs: Tensor) -> Tensor:
        output: Tensor = self.model(inputs.to(self._device))
        return output.cpu()


def _model(device: torch.device, seed: int = 0) -> nn.Sequential:
    return reference.make_model(seed).to(device)


def _parameters(model: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.cpu() for name, tensor in reference.whole(reference.parameters_of(model)).items()}


def _sgd(parameters: Any, **options: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9, **options)


@on_gpu([2, 4])
@pytest.mark.parametrize("way", WAYS)
def test_ddp_trains_like_one_process(device: torch.device, rank: int, world_size: int, way: str) -> None:
    model = _model(device, seed=rank)  # DDP must copy rank 0's
    ddp = DistributedDataParallel(model, device_ids=[device.index], **WAYS[way])
    reference.train_spread(FromHost(ddp, device), rank)
    all_close(_parameters(model), reference.train_alone(world_size), way)


def test_ddp_without_device_ids_trains_alike(device: torch.device, rank: int, world_size: int) -> None:
    model = _model(device)
    reference.train_spread(FromHost(DistributedDataParallel(model), device), rank)
    all_close(_parameters(model), reference.train_alone(world_size))


@pytest.mark.parametrize("is_builtin", [False, True])
def test_ddp_trains_with_halved_gradients(device: torch.device, rank: int, world_size: int, is_builtin: bool) -> None:
    model = _model(device).float()
    ddp = DistributedDataParallel(model, device_ids=[device.index])
    if is_builtin:
        ddp._register_builtin_comm_hook(BuiltinCommHookType.FP16_COMPRESS)
    else:
        ddp.register_comm_hook(None, fp16_compress_hook)
    optimizer = reference.make_sgd(ddp.parameters())
    for step in range(reference.NUM_STEPS):
        optimizer.zero_grad()
        inputs, targets = (tensor.float().to(device) for tensor in reference.batch(step, rank))
        reference.loss_of(ddp, inputs, targets).backward()
        optimizer.step()
    expected = {name: tensor.float() for name, tensor in reference.train_alone(world_size).items()}
    all_close(_parameters(model), expected, tolerance=0.02)


def test_a_hook_may_start_a_collective_in_its_callback(device: torch.device, rank: int, world_size: int) -> None:
    """In many small buckets: the next one's collective comes after the callback's on all ranks."""
    model = _model(device)
    ddp = DistributedDataParallel(model, device_ids=[device.index], bucket_cap_mb=0.001)
    register_averaging_hook(ddp, world_size)
    reference.train_spread(FromHost(ddp, device), rank)
    all_close(_parameters(model), reference.train_alone(world_size))


def test_ddp_reduces_a_large_model_behind_the_backward_pass(device: torch.device, rank: int, world_size: int) -> None:
    torch.manual_seed(0)
    layers = [layer for _ in range(6) for layer in (nn.Linear(512, 512), nn.ReLU())]
    model = nn.Sequential(*layers).to(device)
    ddp = DistributedDataParallel(model, device_ids=[device.index], bucket_cap_mb=1)
    batches = [torch.randn(8, 512, generator=torch.Generator().manual_seed(other)) for other in range(world_size)]
    for _ in range(3):  # from the second on with rebuilt buckets
        ddp.zero_grad()
        ddp(batches[rank].to(device)).square().mean().backward()
    mine = {name: parameter.grad.clone() for name, parameter in model.named_parameters() if parameter.grad is not None}
    model.zero_grad()
    model(torch.cat(batches).to(device)).square().mean().backward()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(mine[name], parameter.grad, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("is_resharded", [True, False])
def test_fsdp_trains_like_one_process(device: torch.device, rank: int, world_size: int, is_resharded: bool) -> None:
    mesh = init_device_mesh("cuda", (world_size,))
    model = _model(device)
    for layer in [layer for layer in model if isinstance(layer, nn.Linear)]:
        fully_shard(layer, mesh=mesh, reshard_after_forward=is_resharded)
    fully_shard(model, mesh=mesh, reshard_after_forward=is_resharded)
    reference.train_spread(FromHost(model, device), rank, reference.make_adam)
    all_close(_parameters(model), reference.train_alone(world_size, reference.make_adam))


def test_hsdp_trains_like_one_process(device: torch.device, rank: int, world_size: int) -> None:
    mesh = init_device_mesh("cuda", (2, 2), mesh_dim_names=("replicate", "shard"))
    model: Any = fully_shard(_model(device), mesh=mesh)
    reference.train_spread(FromHost(model, device), rank)
    all_close(_parameters(model), reference.train_alone(world_size))


def test_a_tensor_survives_every_redistribution(device: torch.device, rank: int, world_size: int) -> None:
    mesh = init_device_mesh("cuda", (world_size,))
    whole = torch.arange(35.0, device=device).view(7, 5)  # 7 rows over 4 ranks are uneven
    placements: list[Any] = [Replicate(), Shard(0), Shard(1)]
    for before in placements:
        spread = distribute_tensor(whole if rank == 0 else torch.zeros_like(whole), mesh, [before])
        for after in placements:
            moved = spread.redistribute(mesh, [after])
            assert isinstance(moved, DTensor)
            assert torch.equal(moved.full_tensor(), whole), (before, after)


@on_gpu(2)
def test_tensor_parallel_trains_like_one_process(device: torch.device) -> None:
    plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
    model = parallelize_module(_model(device), init_device_mesh("cuda", (2,)), plan)
    # One parameter at a time: on GPUs torch would take them together, and those that are spread apart can't be mixed.
    reference.train_spread(FromHost(model, device), 0, lambda parameters: _sgd(parameters, foreach=False))
    all_close(_parameters(model), reference.train_alone(1))


@on_gpu(2)
@pytest.mark.parametrize("name", ["ScheduleGPipe", "Schedule1F1B"])
def test_a_pipeline_gives_the_gradients_of_one_process(device: torch.device, rank: int, name: str) -> None:
    alone, cuts = _model(device), [0, 2, 5]
    inputs, targets = (tensor.to(device) for tensor in reference.batch(0, 0, 8))
    reference.loss_of(alone, inputs, targets).backward()
    start, end = list(pairwise(cuts))[rank]
    part = _model(device)[start:end]
    stage = pipelining.PipelineStage(part, rank, 2, device)
    schedule = getattr(pipelining, name)(stage, 4, loss_fn=nn.functional.mse_loss)
    if rank == 0:
        schedule.step(inputs)
    else:
        schedule.step(target=targets)
    for mine, expected in zip(part.parameters(), alone[start:end].parameters(), strict=True):
        torch.testing.assert_close(mine.grad, expected.grad)
