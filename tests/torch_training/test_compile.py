from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch._dynamo
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import Tensor, nn
from torch._dynamo.utils import counters
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from tests.inductor import needs_inductor
from tests.torch_training import reference_training as reference
from tests.torch_training.closeness import all_close, close
from tests.torch_training.training_ranks import trains_on

NUM_RANKS = 2
pytestmark = trains_on(NUM_RANKS)
every_compiler = pytest.mark.parametrize("compiler", ["aot_eager", pytest.param("inductor", marks=needs_inductor)])


def _in_place(tensor: Tensor) -> Tensor:
    """Call what Dynamo rewrites to functional collectives."""
    total = tensor * 2
    dist.all_reduce(total)
    gathered = total.new_empty(2 * len(total), *total.shape[1:])
    dist.all_gather_into_tensor(gathered, total)
    part = torch.empty_like(total)
    dist.reduce_scatter_tensor(part, gathered)
    swapped = torch.empty_like(part)
    dist.all_to_all_single(swapped, part)
    parts = [torch.empty_like(swapped) for _ in range(2)]
    dist.all_gather(parts, swapped)
    return parts[0] * 3 + parts[1]


def _functional(tensor: Tensor) -> Tensor:
    world: Any = dist.group.WORLD
    total = functional.all_reduce(tensor * 2, "sum", world)
    gathered = functional.all_gather_tensor(total, 0, world)
    part = functional.reduce_scatter_tensor(gathered, "avg", 0, world)
    swapped = functional.all_to_all_single(part, None, None, world)
    copied: Tensor = functional.broadcast(swapped, 1, world)
    return torch.add(part, copied, alpha=3)


def _messages(tensor: Tensor) -> Tensor:
    other = 1 - dist.get_rank()
    received = torch.empty_like(tensor)
    operations = [dist.P2POp(dist.irecv, received, other), dist.P2POp(dist.isend, tensor * 2, other)]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    return received + tensor


def _asynchronous(tensor: Tensor) -> Tensor:
    total, copy = tensor * 2, tensor + 1
    first: Any = dist.all_reduce(total, async_op=True)
    second: Any = dist.broadcast(copy, 1, async_op=True)
    independent = tensor.sin()
    first.wait()
    second.wait()
    return total * copy + independent


def _broadcast_and_barrier(tensor: Tensor) -> Tensor:
    copy = tensor.cos()
    dist.broadcast(copy, 0)
    dist.barrier()
    return copy * 2


def _input(rank: int, step: int) -> Tensor:
    return torch.randn(4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(10 * step + rank))


def _num_graphs() -> int:
    return int(counters["stats"]["unique_graphs"])


def _compare(rank: int, functions: list[Callable[[Tensor], Tensor]], compiler: str, is_whole: bool) -> None:
    torch._dynamo.config.enable_p2p_compilation = True  # torch has it off
    for number, function in enumerate(functions):
        compiled = torch.compile(function, backend=compiler, fullgraph=is_whole)
        for step in range(3):
            close(compiled(_input(rank, step)), function(_input(rank, step)), (function.__name__, step))
        assert _num_graphs() == number + 1 if is_whole else _num_graphs() > number, (function.__name__, _num_graphs())


@every_compiler
def test_collectives_compile_to_one_graph(rank: int, compiler: str) -> None:
    _compare(rank, [_in_place, _functional, _messages], compiler, True)


@every_compiler
def test_what_torch_cant_trace_runs_between_graphs(rank: int, compiler: str) -> None:
    _compare(rank, [_asynchronous, _broadcast_and_barrier], compiler, False)


class _Model(nn.Module):
    """Has a forward of its own: inside DDP and FSDP, Dynamo leaves those of torch.nn alone."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = reference.make_model()

    def forward(self, inputs: Tensor) -> Any:
        return self.layers(inputs)


@every_compiler
def test_a_compiled_ddp_model_trains_like_one_process(rank: int, compiler: str) -> None:
    model = _Model()
    compiled: Any = torch.compile(DistributedDataParallel(model), backend=compiler)
    reference.train_spread(compiled, rank)
    all_close(reference.parameters_of(model.layers), reference.train_alone(NUM_RANKS))
    assert _num_graphs() > 0


def _without_folders(text: str) -> str:
    """Leave out the folders of torch and of the checkout, whatever they are called."""
    for folder in (Path(torch.__file__).parents[1], Path(__file__).parents[2]):
        text = text.replace(str(folder), "")
    return text


def test_dynamo_finds_nothing_of_the_backend_below_a_compiled_ddp_model(rank: int) -> None:
    compiled: Any = torch.compile(DistributedDataParallel(_Model()), backend="aot_eager")
    reference.train_spread(compiled, rank)
    assert [reason for reason in counters["graph_break"] if "phalanx" in _without_folders(reason)] == []


@every_compiler
def test_a_compiled_fsdp_model_trains_like_one_process(rank: int, compiler: str) -> None:
    model = _Model()
    fully_shard(model, mesh=init_device_mesh("cpu", (NUM_RANKS,)))
    model.compile(backend=compiler)
    reference.train_spread(model, rank)
    all_close(reference.whole(reference.parameters_of(model.layers)), reference.train_alone(NUM_RANKS))
    assert _num_graphs() > 0
