"""Limits of time in groups over torch's own engines."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
import torch

import phalanx
from phalanx.collectives import Group
from tests.leftovers import wait_until

pytestmark = pytest.mark.slow


def _is_told(folder: Path) -> bool:
    return wait_until((folder / "raised").exists, 20)


@pytest.mark.ranks(2, backend="gloo", timeout=30)
@pytest.mark.parametrize("async_op", [False, True])
def test_a_list_of_tensors_is_awaited_no_longer_than_told(group: Group, tmp_path: Path, async_op: bool) -> None:
    tensors = [torch.ones(2), torch.ones(3)]
    if group.rank == 1:
        assert _is_told(tmp_path)
        return

    def reduce() -> None:
        work = group.all_reduce_coalesced(tensors, timeout_s=0.3, async_op=async_op)
        assert work is not None
        work.wait()

    with pytest.raises(RuntimeError):
        reduce()
    (tmp_path / "raised").touch()


@pytest.mark.ranks(2, backend="gloo", timeout=30)
def test_lists_of_tensors_are_reduced_in_the_background(group: Group) -> None:
    tensors = [torch.ones(2), torch.full((3,), 2.0)]
    work = group.all_reduce_coalesced(tensors, async_op=True)
    assert work.result() == tensors
    assert [tensor.tolist() for tensor in tensors] == [[2.0] * 2, [4.0] * 3]


@pytest.mark.ranks(2, backend="gloo", timeout=30)
def test_a_part_of_a_group_has_the_limit_it_was_given(group: Group, tmp_path: Path) -> None:
    limits = [group.split([0, 1]), group.split([0, 1], timeout_s=timedelta(seconds=7)), group.split_by_color(0)]
    assert [part and part.timeout_s for part in limits] == [group.timeout_s, 7.0, group.timeout_s]
    with pytest.raises(phalanx.UsageError, match="give a positive number"):
        group.split([0, 1], timeout_s=0)
    part = group.split([0, 1], timeout_s=0.5)
    assert part is not None
    if group.rank == 1:
        assert _is_told(tmp_path)
        return
    with pytest.raises(RuntimeError):
        part.all_reduce(torch.ones(2))
    (tmp_path / "raised").touch()
