from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import Tensor

from tests.torch_training.closeness import close
from tests.torch_training.training_ranks import trains_on

NUM_RANKS = 3
pytestmark = trains_on(NUM_RANKS)


def _of(rank: int, *shape: int) -> Tensor:
    """Return what a rank brings."""
    return torch.arange(torch.Size(shape).numel(), dtype=torch.float64).reshape(shape) + 100 * rank


def _all(*shape: int) -> list[Tensor]:
    return [_of(rank, *shape) for rank in range(NUM_RANKS)]


def test_functional_collectives_return_what_one_process_computes(process_group: Any, rank: int) -> None:
    given = _of(rank, 6, 3)
    stacked = torch.stack(_all(6, 3))
    reductions = {"sum": stacked.sum(0), "avg": stacked.mean(0), "max": stacked.amax(0), "min": stacked.amin(0)}
    for op, expected in reductions.items():
        close(functional.all_reduce(given, op, process_group) + 0, expected, op)
    for dim in range(2):
        close(functional.all_gather_tensor(given, dim, process_group) + 0, torch.cat(_all(6, 3), dim), dim)
        of_rank = stacked.sum(0).chunk(NUM_RANKS, dim)[rank]
        close(functional.reduce_scatter_tensor(given, "sum", dim, process_group) + 0, of_rank, dim)
    close(functional.broadcast(given, 1, process_group) + 0, _of(1, 6, 3))
    swapped = torch.cat([other.chunk(NUM_RANKS)[rank] for other in _all(6, 3)])
    close(functional.all_to_all_single(given, None, None, process_group) + 0, swapped)
    shifted = functional.permute_tensor(_of(rank, 6), [1, 2, 0], process_group)
    close(shifted + 0, _of((rank - 1) % NUM_RANKS, 6))
    close(given, _of(rank, 6, 3), "the input")


def test_uneven_blocks_change_places(process_group: Any, rank: int) -> None:
    """Rank i sends i + j rows to rank j."""

    counts = [[source + target for target in range(NUM_RANKS)] for source in range(NUM_RANKS)]
    blocks = [torch.split(_of(source, sum(counts[source]), 2), counts[source]) for source in range(NUM_RANKS)]
    incoming = [counts[source][rank] for source in range(NUM_RANKS)]
    given = torch.cat(blocks[rank])
    result = functional.all_to_all_single(given, incoming, counts[rank], process_group)
    close(result + 0, torch.cat([blocks[source][rank] for source in range(NUM_RANKS)]))


def test_lists_of_tensors_travel_in_one_call(process_group: Any, rank: int) -> None:
    shapes = [(3, 2), (6,), (9, 1)]
    given = [_of(rank, *shape) for shape in shapes]
    reduced = functional.all_reduce_coalesced(given, "sum", process_group)
    gathered = functional.all_gather_into_tensor_coalesced(given, process_group)
    parts = functional.reduce_scatter_tensor_coalesced(given, "sum", [0, 0, 0], process_group)
    for at, shape in enumerate(shapes):
        total = torch.stack(_all(*shape)).sum(0)
        close(reduced[at] + 0, total, shape)
        close(gathered[at] + 0, torch.cat(_all(*shape)), shape)
        close(parts[at] + 0, total.chunk(NUM_RANKS)[rank], shape)


def test_gradients_flow_back_through_collectives(process_group: Any, rank: int) -> None:
    weights = [_of(7 + other, 6, 3) for other in range(NUM_RANKS)]

    def gradient_of(collective: Any, weight: Tensor) -> Tensor:
        given = _of(rank, 6, 3).requires_grad_()
        (collective(given) * weight).sum().backward()
        assert given.grad is not None
        return given.grad

    gathered = gradient_of(
        lambda given: functional.all_gather_tensor_autograd(given, 0, process_group),
        torch.cat([weights[rank]] * NUM_RANKS),
    )
    close(gathered, torch.stack(weights).sum(0))
    scattered = gradient_of(
        lambda given: functional.reduce_scatter_tensor_autograd(given, "sum", 0, process_group), weights[rank][:2]
    )
    close(scattered, torch.cat([weight[:2] for weight in weights]))
    exchanged = gradient_of(
        lambda given: functional.all_to_all_single_autograd(given, [2] * 3, [2] * 3, process_group), weights[rank]
    )
    close(exchanged, torch.cat([weight.chunk(NUM_RANKS)[rank] for weight in weights]))


def test_operators_that_write_into_given_tensors_fill_them(process_group: Any, rank: int) -> None:
    operators = torch.ops._c10d_functional
    name = process_group.group_name
    given = _of(rank, 4)
    out = torch.empty(4 * NUM_RANKS, dtype=torch.float64)
    result = operators.wait_tensor(operators.all_gather_into_tensor_out(given, NUM_RANKS, name, out=out))
    close(result, torch.cat(_all(4)))
    assert result.data_ptr() == out.data_ptr()

    part = torch.empty(2, dtype=torch.float64)
    operators.wait_tensor(operators.reduce_scatter_tensor_out(_of(rank, 6), "sum", NUM_RANKS, name, out=part))
    close(part, torch.stack(_all(6)).sum(0).chunk(NUM_RANKS)[rank])

    operators.wait_tensor(operators.all_reduce_(given, "sum", name))
    close(given, torch.stack(_all(4)).sum(0))
    copied = _of(rank, 4)
    operators.wait_tensor(operators.broadcast_(copied, 2, name))
    close(copied, _of(2, 4))


@pytest.mark.ranks(2)
def test_a_batch_of_messages_returns_the_same_kinds_of_tensors_as_over_gloo(process_group: Any, rank: int) -> None:
    def exchange(group: Any) -> list[tuple[torch.dtype, int]]:
        operators = torch.ops._c10d_functional
        given, received = torch.ones(3, dtype=torch.int64), torch.zeros(3, dtype=torch.int64)
        peers = [1 - rank] * 2
        results = operators.batch_p2p_ops(["irecv", "isend"], peers, [0, 0], [received, given], group.group_name)
        return [(operators.wait_tensor(result).dtype, result.numel()) for result in results]

    assert exchange(process_group) == exchange(dist.new_group(backend="gloo"))


@pytest.mark.parametrize("dtype", [torch.float64, torch.int64])
def test_a_batch_of_messages_goes_round_the_ring_in_both_directions(
    process_group: Any, rank: int, dtype: torch.dtype
) -> None:
    operators = torch.ops._c10d_functional
    after, before = (rank + 1) % NUM_RANKS, (rank - 1) % NUM_RANKS
    given = _of(rank, 5).to(dtype)
    from_before, from_after = torch.zeros_like(given), torch.zeros_like(given)
    results = operators.batch_p2p_ops(
        ["irecv", "irecv", "isend", "isend"],
        [before, after, after, before],
        [1, 2, 1, 2],
        [from_before, from_after, given, given * 2],
        process_group.group_name,
    )
    for result in results:
        operators.wait_tensor(result)
    close(results[0], _of(before, 5).to(dtype))
    close(results[1], _of(after, 5).to(dtype) * 2)
    assert results[0].data_ptr() == from_before.data_ptr()
