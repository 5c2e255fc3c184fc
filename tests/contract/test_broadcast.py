from __future__ import annotations

import pytest
import torch

from phalanx import Group
from tests.checks import same
from tests.contract.sizes import counts_around_limits
from tests.reference import DTYPES, values
from tests.worlds import every_world, worlds


@every_world
def test_broadcast_copies_every_type_from_every_root(group: Group) -> None:
    for root in range(group.size):
        for dtype in (*DTYPES, torch.float8_e4m3fn):
            shape = (root + 1,) * 3
            sent = values(torch.uint8, (root + 1, root + 1, (root + 1) * dtype.itemsize), root).view(dtype)
            sent = sent if dtype is not torch.bool else values(dtype, shape, root)
            tensor = sent.clone() if group.rank == root else torch.zeros(shape).to(dtype)
            assert group.broadcast(tensor, root) is None
            same(tensor, sent, (root, dtype))


@every_world
@pytest.mark.slow
def test_broadcast_is_right_around_every_internal_size(group: Group) -> None:
    for count in [*counts_around_limits(1), 5_000_001]:
        root = count % group.size
        sent = values(torch.uint8, count, count)
        tensor = sent.clone() if group.rank == root else torch.zeros(count, dtype=torch.uint8)
        group.broadcast(tensor, root)
        same(tensor, sent, count)


@every_world
def test_many_broadcasts_in_a_row_arrive_in_order(group: Group) -> None:
    """The root goes on at once, so it gets far ahead of its readers."""
    for number in range(300):
        tensor = torch.full((number % 40,), float(number if group.rank == 0 else -1))
        group.broadcast(tensor)
        same(tensor, torch.full((number % 40,), float(number)), number)


@worlds(8)
def test_broadcast_of_eight_ranks(group: Group) -> None:
    for root in range(group.size):
        for count in (0, 1, 600_000):
            tensor = torch.full((count,), group.rank)
            group.broadcast(tensor, root)
            same(tensor, torch.full((count,), root), (root, count))


@every_world
def test_parameters_that_need_gradients_can_be_broadcast(group: Group) -> None:
    parameter = torch.nn.Parameter(torch.full((3, 3), float(group.rank)))
    group.broadcast(parameter, group.size - 1)
    same(parameter.detach(), torch.full((3, 3), float(group.size - 1)))
