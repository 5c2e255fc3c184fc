"""Tensors that are not one block of memory, or no block at all."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import phalanx
from phalanx.groups.shared_memory import SharedMemoryGroup
from tests.checks import same
from tests.reference import values
from tests.worlds import every_world, worlds

Layout = Callable[[torch.Tensor], torch.Tensor]

# Each gives a tensor of the same shape and values that lies differently in memory.
LAYOUTS: dict[str, Layout] = {
    "transposed": lambda t: t.transpose(1, 2).contiguous().transpose(1, 2),
    "every second column": lambda t: torch.stack([t, torch.zeros_like(t)], -1).flatten(-2)[..., ::2],
    "a window": lambda t: torch.nn.functional.pad(t, (1, 2, 3, 1))[:, 3:-1, 1:-2],
    "channels last": lambda t: t.unsqueeze(0).contiguous(memory_format=torch.channels_last).squeeze(0),
    "real parts": lambda t: torch.complex(t, torch.full_like(t, 7)).real,
}


def _sides(large: bool) -> tuple[int, int, int]:
    return (3, 160, 170) if large else (2, 3, 4)


@pytest.mark.parametrize("large", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["small", "large"])
@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=[name.replace(" ", "-") for name in LAYOUTS])
@every_world
def test_collectives_take_tensors_in_pieces(group: SharedMemoryGroup, layout: Layout, large: bool) -> None:
    n, me, shape = group.size, group.rank, _sides(large)
    inputs = [values(torch.uint8, shape, rank).float() for rank in range(n)]
    total = torch.stack(inputs).sum(0)

    def own() -> torch.Tensor:
        return layout(inputs[me].clone())

    def blank() -> torch.Tensor:
        return layout(torch.full(shape, -1.0))

    assert not own().is_contiguous()
    tensor = own()
    group.all_reduce(tensor)
    same(tensor, total, "all_reduce")
    tensor = own()
    group.reduce(tensor, n - 1)
    same(tensor, total if me == n - 1 else inputs[me], "reduce")
    tensor = own()
    group.broadcast(tensor, n - 1)
    same(tensor, inputs[n - 1], "broadcast")
    outputs = [blank() for _ in range(n)]
    group.all_gather(outputs, own())
    same(torch.stack(outputs), torch.stack(inputs), "all_gather")
    outputs = [blank() for _ in range(n)]
    group.gather(outputs if me == 0 else None, own())
    same(torch.stack(outputs), torch.stack(inputs) if me == 0 else torch.full((n, *shape), -1.0), "gather")
    output = blank()
    group.scatter(output, [layout(block.clone()) for block in inputs] if me == 0 else None)
    same(output, inputs[me], "scatter")
    output = blank()
    group.reduce_scatter(output, [layout(block.clone()) for block in inputs])
    same(output, inputs[me] * n, "reduce_scatter")
    outputs = [blank() for _ in range(n)]
    group.all_to_all(outputs, [own() for _ in range(n)])
    same(torch.stack(outputs), torch.stack(inputs), "all_to_all")
    received = blank()
    work = group.recv(received, (me - 1) % n, async_op=True)
    sent = group.send(own(), (me + 1) % n, async_op=True)
    work.wait()
    sent.wait()
    same(received, inputs[me - 1], "send and recv")


@every_world
def test_single_tensor_forms_take_tensors_in_pieces(group: SharedMemoryGroup) -> None:
    n = group.size
    output = torch.zeros(6, n).t()
    group.all_gather_single(output, torch.full((2, 3), float(group.rank)).t())
    same(output, torch.arange(float(n)).repeat_interleave(6).view(n, 6), "all_gather_single")
    part = torch.zeros(6, 2)[:, 0]
    group.reduce_scatter_single(part, torch.ones(6, n).t())
    same(part, torch.full((6,), float(n)), "reduce_scatter_single")
    swapped = torch.zeros(2, n).t()
    group.all_to_all_single(swapped, torch.full((2, n), float(group.rank)).t())
    same(swapped, torch.arange(float(n)).repeat_interleave(2).view(n, 2), "all_to_all_single")


@every_world
def test_asynchronous_operations_put_tensors_in_pieces_back(group: SharedMemoryGroup) -> None:
    big = torch.zeros(40, 40)
    columns = [big[:, number] for number in range(10)]
    for number, column in enumerate(columns):
        column.fill_(float(number))
    works = [group.all_reduce(column, async_op=True) for column in columns]
    for work in works:
        work.wait()
    expected = torch.zeros(40, 40)
    expected[:, :10] = torch.arange(10.0) * group.size
    same(big, expected)


@every_world
def test_collectives_take_single_values(group: SharedMemoryGroup) -> None:
    n = group.size
    tensor = torch.tensor(2.0)
    group.all_reduce(tensor)
    same(tensor, torch.tensor(2.0 * n))
    tensor = torch.tensor(group.rank)
    group.broadcast(tensor, n - 1)
    same(tensor, torch.tensor(n - 1))
    outputs = [torch.tensor(-1) for _ in range(n)]
    group.all_gather(outputs, torch.tensor(group.rank))
    same(torch.stack(outputs), torch.arange(n))
    joined = torch.zeros(n, dtype=torch.int64)
    group.all_gather_single(joined, torch.tensor(group.rank))
    same(joined, torch.arange(n))
    part = torch.tensor(0)
    group.reduce_scatter_single(part, torch.arange(n))
    same(part, torch.tensor(group.rank * n))


@every_world
def test_collectives_take_empty_tensors(group: SharedMemoryGroup) -> None:
    n = group.size
    for shape in ((0,), (0, 3), (3, 0)):
        group.all_reduce(torch.empty(shape))
        group.reduce(torch.empty(shape))
        group.broadcast(torch.empty(shape))
        group.all_gather([torch.empty(shape) for _ in range(n)], torch.empty(shape))
        group.all_gather_single(torch.empty(n, *shape), torch.empty(shape))
        group.gather([torch.empty(shape) for _ in range(n)] if group.rank == 0 else None, torch.empty(shape))
        group.scatter(torch.empty(shape), [torch.empty(shape)] * n if group.rank == 0 else None)
        group.reduce_scatter(torch.empty(shape), [torch.empty(shape)] * n)
        group.reduce_scatter_single(torch.empty(shape), torch.empty(n, *shape))
        group.all_to_all([torch.empty(shape) for _ in range(n)], [torch.empty(shape)] * n)
        group.all_to_all_single(torch.empty(n * 2, 0), torch.empty(n * 2, 0))
        work = group.recv(torch.empty(shape), (group.rank - 1) % n, async_op=True)
        group.send(torch.empty(shape), (group.rank + 1) % n, async_op=True).wait()
        work.wait()
    tensor = torch.ones(3)
    group.all_reduce(tensor)
    same(tensor, torch.full((3,), float(n)), "and the group still works")


@every_world
def test_tensors_of_many_dimensions_are_fine(group: SharedMemoryGroup) -> None:
    for layout in (torch.ones(2, 1, 3, 1, 2, 1, 2, 2), torch.ones(2, 1, 3, 1, 2, 1, 2, 2).transpose(0, 7)):
        tensor = layout.clone(memory_format=torch.preserve_format)
        group.all_reduce(tensor)
        same(tensor, torch.full(tensor.shape, float(group.size)))


@worlds(2)
def test_empty_tensors_may_have_any_strides(group: SharedMemoryGroup) -> None:
    huge = torch.empty(0).as_strided((0, 5), (1 << 60, 1 << 60))
    group.all_reduce(huge)
    group.all_gather([torch.empty(0, 5) for _ in range(group.size)], huge)
    freed = torch.ones(3)[:0]
    freed.untyped_storage().resize_(0)
    group.broadcast(freed)


@worlds(2)
def test_a_tensor_whose_memory_was_freed_is_refused(group: SharedMemoryGroup) -> None:
    for kept, view in ((0, slice(None)), (8, slice(None)), (0, slice(2, None)), (0, slice(None, None, 2))):
        tensor = torch.ones(4)
        part = tensor[view]
        tensor.untyped_storage().resize_(kept)
        with pytest.raises(phalanx.UsageError, match=f"its storage has {kept}: it was resized or freed"):
            group.all_reduce(part)
    whole = torch.ones(4)
    group.all_reduce(whole)
    same(whole, torch.full((4,), 2.0))


@worlds(2)
def test_an_expanded_tensor_can_be_given_but_not_filled(group: SharedMemoryGroup) -> None:
    expanded = torch.tensor([float(group.rank)]).expand(4)
    outputs = [torch.zeros(4) for _ in range(group.size)]
    group.all_gather(outputs, expanded)
    same(torch.stack(outputs), torch.arange(2.0).repeat_interleave(4).view(2, 4))
    with pytest.raises(phalanx.UsageError, match="expanded view whose elements share memory"):
        group.all_reduce(expanded)


@worlds(2)
def test_elements_that_share_memory_can_be_given_but_not_filled(group: SharedMemoryGroup) -> None:
    windows = torch.arange(5.0).as_strided((4, 2), (1, 1))
    outputs = [torch.zeros(4, 2) for _ in range(group.size)]
    group.all_gather(outputs, windows)
    same(torch.stack(outputs), torch.stack([windows, windows]))
    with pytest.raises(phalanx.UsageError, match="elements share memory"):
        group.all_reduce(windows)
    columns = torch.zeros(10).as_strided((4, 2), (2, 3))  # at even and at odd places: no two share memory
    columns += 1
    group.all_reduce(columns)
    same(columns, torch.full((4, 2), 2.0))


@pytest.mark.host_memory("on a GPU they are refused")
@worlds(2)
def test_lazy_views_are_moved_as_they_read(group: SharedMemoryGroup) -> None:
    """A conjugate or negative view has other values than its memory, in plain layouts too."""
    number = torch.tensor([1 + 2j])
    group.all_reduce(number.conj())
    same(number, torch.tensor([2 + 4j]))
    negative = number.conj().imag  # -4, stored as 4 with a flag
    assert negative.is_neg()
    outputs = [torch.zeros(1) for _ in range(group.size)]
    group.all_gather(outputs, negative)
    same(torch.stack(outputs), torch.full((2, 1), -4.0))
    memory = torch.zeros(3)
    group.broadcast(torch._neg_view(memory) if group.rank else torch.arange(3.0), 0)
    same(memory, -torch.arange(3.0) if group.rank else torch.zeros(3))
