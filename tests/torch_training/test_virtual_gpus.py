"""Programs for four GPUs and NCCL, on virtual ones: they end with the numbers that one process has on the CPU."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import pipelining
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

from tests.torch_training import reference_training as reference
from tests.torch_training.closeness import all_close, close
from tests.torch_training.training_ranks import TORCHS_OWN_WARNINGS
from tests.virtual_gpus.in_child import on_virtual_devices

NUM_GPUS = 4
pytestmark = [pytest.mark.slow, *(pytest.mark.filterwarnings(f"ignore:{message}") for message in TORCHS_OWN_WARNINGS)]
on_four_gpus = pytest.mark.ranks(NUM_GPUS, gpus="virtual", backend="nccl")


def _gpu(rank: int) -> torch.device:
    torch.cuda.set_device(rank)
    return torch.device("cuda", rank)


def _train(model: nn.Module, optimizer: torch.optim.Optimizer, gpu: torch.device, data_rank: int) -> None:
    for step in range(reference.NUM_STEPS):
        inputs, targets = (tensor.to(gpu, non_blocking=True) for tensor in reference.batch(step, data_rank))
        optimizer.zero_grad()
        reference.loss_of(model, inputs, targets).backward()
        optimizer.step()


def _on_cpu(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    assert all(tensor.device.type == "cuda" for tensor in tensors.values())
    return {name: tensor.cpu() for name, tensor in tensors.items()}


@on_virtual_devices(NUM_GPUS, face="cuda")
def test_data_parallel_trains_like_the_cpu() -> None:
    model = reference.make_model()
    spread = nn.DataParallel(model.cuda(), device_ids=list(range(NUM_GPUS)))
    optimizer = reference.make_sgd(model.parameters())
    for step in range(reference.NUM_STEPS):
        inputs, targets = (tensor.cuda() for tensor in reference.whole_batch(step, range(NUM_GPUS)))
        optimizer.zero_grad()
        reference.loss_of(spread, inputs, targets).backward()
        optimizer.step()
    all_close(_on_cpu(reference.parameters_of(model)), reference.train_alone(NUM_GPUS))


@on_four_gpus
@pytest.mark.usefixtures("process_group")
def test_ddp_trains_like_the_cpu(rank: int) -> None:
    gpu = _gpu(rank)
    model = reference.make_model(seed=rank).to(gpu)
    ddp = DistributedDataParallel(model, device_ids=[rank], gradient_as_bucket_view=True)
    _train(ddp, reference.make_sgd(model.parameters()), gpu, rank)
    all_close(_on_cpu(reference.parameters_of(model)), reference.train_alone(NUM_GPUS))


@on_four_gpus
@pytest.mark.usefixtures("process_group")
def test_fsdp_trains_like_the_cpu(rank: int) -> None:
    gpu = _gpu(rank)
    model: Any = reference.make_model().to(gpu)
    mesh = init_device_mesh("cuda", (NUM_GPUS,))
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    _train(model, reference.make_adam(model.parameters()), gpu, rank)
    parameters = _on_cpu(reference.whole(reference.parameters_of(model)))
    all_close(parameters, reference.train_alone(NUM_GPUS, reference.make_adam))


@on_four_gpus
@pytest.mark.usefixtures("process_group")
def test_spread_tensors_and_tensor_parallel_layers_are_right(rank: int) -> None:
    gpu = _gpu(rank)
    mesh = init_device_mesh("cuda", (2, 2), mesh_dim_names=("data", "tensor"))
    left, right = (torch.arange(48.0, dtype=torch.float64).reshape(6, 8), torch.arange(32.0).double().reshape(8, 4))
    a, b = (
        distribute_tensor(left, mesh, [Shard(0), Replicate()]),
        distribute_tensor(right, mesh, [Replicate(), Shard(1)]),
    )
    product = (a @ b).full_tensor()  # type: ignore[attr-defined]
    assert product.device == gpu
    close(product.cpu(), left @ right)

    plan: Any = {"0": ColwiseParallel(), "2": RowwiseParallel()}
    model = parallelize_module(reference.make_model().to(gpu), mesh["tensor"], plan)
    fully_shard(model, mesh=mesh["data"])
    _train(model, reference.make_sgd(model.parameters()), gpu, rank // 2)
    all_close(_on_cpu(reference.whole(reference.parameters_of(model))), reference.train_alone(2))


@on_four_gpus
@pytest.mark.usefixtures("process_group")
def test_a_pipeline_trains_like_the_cpu(rank: int) -> None:
    gpu = _gpu(rank)
    layers = list(reference.make_model().named_children())
    start, end = list(pairwise([0, 1, 2, 3, 5]))[rank]
    module = nn.Sequential()
    for name, layer in layers[start:end]:
        module.add_module(name, layer)
    module.to(gpu)
    stage = pipelining.PipelineStage(module, rank, NUM_GPUS, gpu)
    schedule = pipelining.Schedule1F1B(stage, 4, loss_fn=nn.functional.mse_loss)
    optimizer = reference.make_sgd(parameters) if (parameters := list(module.parameters())) else None
    for step in range(reference.NUM_STEPS):
        inputs, targets = (tensor.to(gpu) for tensor in reference.batch(step, 0, 8))
        if optimizer is not None:
            optimizer.zero_grad()
        given = (inputs,) if rank == 0 else ()
        aims: dict[str, Any] = {"target": targets} if rank == NUM_GPUS - 1 else {}
        schedule.step(*given, **aims)
        if optimizer is not None:
            optimizer.step()
    own, expected = reference.parameters_of(module), _pipeline_alone()
    all_close(_on_cpu(own), {name: expected[name] for name in own})


def _pipeline_alone() -> dict[str, Tensor]:
    model = reference.make_model()
    optimizer = reference.make_sgd(model.parameters())
    for step in range(reference.NUM_STEPS):
        optimizer.zero_grad()
        reference.loss_of(model, *reference.batch(step, 0, 8)).backward()
        optimizer.step()
    return reference.parameters_of(model)


class _Transformer(nn.Module):
    """Predicts the next of 16 tokens."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(16, 24)
        layer = nn.TransformerEncoderLayer(24, 4, 48, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(24, 16)
        self.double()

    def forward(self, tokens: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1], tokens.device, torch.float64)
        scores: Tensor = self.head(self.encoder(self.embedding(tokens), mask=mask, is_causal=True))
        return nn.functional.cross_entropy(scores[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())


def _sentences(step: int, rank: int) -> Tensor:
    return torch.randint(0, 16, (3, 12), generator=torch.Generator().manual_seed(100 * step + rank))


def _losses(model: nn.Module, batches: list[Tensor]) -> list[Tensor]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    losses = []
    for tokens in batches:
        optimizer.zero_grad()
        loss = model(tokens)
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return losses


@on_four_gpus
@pytest.mark.usefixtures("process_group")
def test_a_transformer_ends_with_the_cpus_loss(rank: int) -> None:
    gpu, steps = _gpu(rank), range(5)
    ddp = DistributedDataParallel(_Transformer().to(gpu), device_ids=[rank])
    mine = torch.stack(_losses(ddp, [_sentences(step, rank).to(gpu) for step in steps]))
    dist.all_reduce(mine, dist.ReduceOp.AVG)
    together = [torch.cat([_sentences(step, other) for other in range(NUM_GPUS)]) for step in steps]
    alone = torch.stack(_losses(_Transformer(), together))
    close(mine.cpu(), alone)
    assert alone[-1] < alone[0]
