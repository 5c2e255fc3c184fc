from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from tests.torch_training import reference_training as reference
from tests.torch_training.training_ranks import all_close, close, train

pytestmark = pytest.mark.slow


def _table(*shape: int) -> Tensor:
    return torch.arange(torch.Size(shape).numel(), dtype=torch.float64).reshape(shape) / 7


@pytest.mark.parametrize("num_rows", [6, 7])  # 7 rows over 3 ranks are uneven
def test_a_tensor_survives_every_redistribution(num_rows: int) -> None:
    def program(rank: int) -> None:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor import Replicate, Shard, distribute_tensor

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

    train(3, program)


def test_partial_sums_are_reduced_on_demand() -> None:
    def program(rank: int) -> None:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

        mesh = init_device_mesh("cpu", (3,))
        for kind, expected in (("sum", 6.0), ("avg", 2.0), ("max", 3.0), ("min", 1.0)):
            mine = torch.full((6, 2), rank + 1.0, dtype=torch.float64)
            partial = DTensor.from_local(mine, mesh, [Partial(kind)])
            result = torch.full((6, 2), expected, dtype=torch.float64)
            close(partial.redistribute(mesh, [Replicate()]).to_local(), result, kind)
            close(partial.redistribute(mesh, [Shard(0)]).to_local(), result[:2], kind)

    train(3, program)


def test_matrix_products_of_spread_tensors_are_those_of_whole_ones() -> None:
    def program(rank: int) -> None:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor import Replicate, Shard, distribute_tensor

        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("rows", "columns"))
        left, right = _table(6, 8), _table(8, 4)
        options: list[Any] = [Replicate(), Shard(0), Shard(1)]
        for first in options:
            for second in options:
                a = distribute_tensor(left, mesh, [first, second])
                b = distribute_tensor(right, mesh, [second, first])
                close((a @ b).full_tensor(), left @ right, (first, second))  # type: ignore[attr-defined]

    train(4, program)


def test_every_axis_of_a_mesh_is_a_group_of_its_own() -> None:
    def program(rank: int) -> tuple[list[int], list[int]]:
        from torch.distributed.device_mesh import init_device_mesh

        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("outer", "inner"))
        members = []
        for name in ("outer", "inner"):
            group = mesh.get_group(name)
            ranks = [torch.zeros(1, dtype=torch.int64) for _ in range(2)]
            dist.all_gather(ranks, torch.tensor([rank]), group=group)
            members.append([int(other) for other in ranks])
            assert dist.get_process_group_ranks(group) == members[-1]
            assert type(group).__name__ == "PhalanxProcessGroup"
        return members[0], members[1]

    assert train(4, program) == [([0, 2], [0, 1]), ([1, 3], [0, 1]), ([0, 2], [2, 3]), ([1, 3], [2, 3])]


def _parallelized(model: nn.Module, mesh: Any, *, is_sequence: bool = False) -> nn.Module:
    """Split the first layer by columns and the second by rows; the third stays whole."""
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    inputs = Shard(0) if is_sequence else Replicate()
    plan = {
        "0": ColwiseParallel(input_layouts=inputs),
        "2": RowwiseParallel(output_layouts=inputs),
    }
    return parallelize_module(model, mesh, plan)


def test_tensor_parallel_trains_like_one_process() -> None:
    def program(rank: int) -> dict[str, Tensor]:
        from torch.distributed.device_mesh import init_device_mesh

        model = _parallelized(reference.make_model(), init_device_mesh("cpu", (2,)))
        reference.train_spread(model, 0)  # all ranks see the same batch
        return reference.whole(reference.parameters_of(model))

    for parameters in train(2, program):
        all_close(parameters, reference.train_alone(1))


def test_sequence_parallel_gives_the_gradients_of_one_process() -> None:
    def program(rank: int) -> dict[str, Tensor]:
        from torch.distributed.device_mesh import init_device_mesh

        model = _parallelized(reference.make_model()[:3], init_device_mesh("cpu", (2,)), is_sequence=True)
        inputs, _ = reference.batch(0, 0)
        model(inputs.tensor_split(2)[rank]).square().sum().backward()
        return reference.whole(reference.gradients_of(model))

    model = reference.make_model()[:3]
    model(reference.batch(0, 0)[0]).square().sum().backward()
    for gradients in train(2, program):
        all_close(gradients, reference.gradients_of(model))


def test_tensor_parallel_inside_fsdp_trains_like_one_process() -> None:
    def program(rank: int) -> dict[str, Tensor]:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard

        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
        model = _parallelized(reference.make_model(), mesh["tensor"])
        fully_shard(model, mesh=mesh["data"])
        reference.train_spread(model, rank // 2)
        return reference.whole(reference.parameters_of(model))

    for parameters in train(4, program):
        all_close(parameters, reference.train_alone(2))
