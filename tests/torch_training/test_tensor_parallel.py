from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from tests.torch_training import reference_training as reference
from tests.torch_training.closeness import all_close, close
from tests.torch_training.training_ranks import trains_on

pytestmark = trains_on(3)


def _table(*shape: int) -> Tensor:
    return torch.arange(torch.Size(shape).numel(), dtype=torch.float64).reshape(shape) / 7


@pytest.mark.parametrize("num_rows", [6, 7])  # 7 rows over 3 ranks are uneven
def test_a_tensor_survives_every_redistribution(rank: int, num_rows: int) -> None:
    mesh = init_device_mesh("cpu", (3,))
    whole = _table(num_rows, 5)
    given = whole if rank == 0 else torch.zeros_like(whole)  # rank 0's is spread
    placements: list[Any] = [Replicate(), Shard(0), Shard(1)]
    for before in placements:
        spread = distribute_tensor(given, mesh, [before])
        close(spread.full_tensor(), whole, before)
        for after in placements:
            moved = spread.redistribute(mesh, [after])
            shard = whole.chunk(3, after.dim)[rank] if after.is_shard() else whole
            close(moved.to_local(), shard, (before, after))
            close(moved.full_tensor(), whole, (before, after))


def test_partial_sums_are_reduced_on_demand(rank: int) -> None:
    mesh = init_device_mesh("cpu", (3,))
    for kind, expected in (("sum", 6.0), ("avg", 2.0), ("max", 3.0), ("min", 1.0)):
        mine = torch.full((6, 2), rank + 1.0, dtype=torch.float64)
        partial = DTensor.from_local(mine, mesh, [Partial(kind)])
        result = torch.full((6, 2), expected, dtype=torch.float64)
        close(partial.redistribute(mesh, [Replicate()]).to_local(), result, kind)
        close(partial.redistribute(mesh, [Shard(0)]).to_local(), result[:2], kind)


@pytest.mark.ranks(4)
def test_matrix_products_of_spread_tensors_are_those_of_whole_ones() -> None:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("rows", "columns"))
    left, right = _table(6, 8), _table(8, 4)
    options: list[Any] = [Replicate(), Shard(0), Shard(1)]
    for first in options:
        for second in options:
            a = distribute_tensor(left, mesh, [first, second])
            b = distribute_tensor(right, mesh, [second, first])
            close((a @ b).full_tensor(), left @ right, (first, second))  # type: ignore[attr-defined]


@pytest.mark.ranks(4)
def test_every_axis_of_a_mesh_is_a_group_of_its_own(rank: int) -> None:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("outer", "inner"))
    for name, members in (("outer", [rank % 2, rank % 2 + 2]), ("inner", [rank // 2 * 2, rank // 2 * 2 + 1])):
        group = mesh.get_group(name)
        ranks = [torch.zeros(1, dtype=torch.int64) for _ in range(2)]
        dist.all_gather(ranks, torch.tensor([rank]), group=group)
        assert [int(other) for other in ranks] == members
        assert dist.get_process_group_ranks(group) == members
        assert type(group).__name__ == "PhalanxProcessGroup"


def _parallelized(model: nn.Module, mesh: Any, *, is_sequence: bool = False) -> nn.Module:
    """Split the first layer by columns and the second by rows; the third stays whole."""
    inputs = Shard(0) if is_sequence else Replicate()
    plan = {
        "0": ColwiseParallel(input_layouts=inputs),
        "2": RowwiseParallel(output_layouts=inputs),
    }
    return parallelize_module(model, mesh, plan)


@pytest.mark.ranks(2)
def test_tensor_parallel_trains_like_one_process() -> None:
    model = _parallelized(reference.make_model(), init_device_mesh("cpu", (2,)))
    reference.train_spread(model, 0)  # all ranks see the same batch
    all_close(reference.whole(reference.parameters_of(model)), reference.train_alone(1))


@pytest.mark.ranks(2)
def test_sequence_parallel_gives_the_gradients_of_one_process(rank: int) -> None:
    model = _parallelized(reference.make_model()[:3], init_device_mesh("cpu", (2,)), is_sequence=True)
    inputs, _ = reference.batch(0, 0)
    model(inputs.tensor_split(2)[rank]).square().sum().backward()
    alone = reference.make_model()[:3]
    alone(inputs).square().sum().backward()
    all_close(reference.whole(reference.gradients_of(model)), reference.gradients_of(alone))


@pytest.mark.ranks(4)
def test_tensor_parallel_inside_fsdp_trains_like_one_process(rank: int) -> None:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
    model = _parallelized(reference.make_model(), mesh["tensor"])
    fully_shard(model, mesh=mesh["data"])
    reference.train_spread(model, rank // 2)
    all_close(reference.whole(reference.parameters_of(model)), reference.train_alone(2))
