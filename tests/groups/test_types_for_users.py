"""What a user's type checker sees. `mypy` checks the types here, and the test that what runs is what they say."""

from __future__ import annotations

from pathlib import Path
from typing import assert_type

import pytest
import torch

import phalanx
from phalanx.groups.shared_memory import SharedMemoryGroup


@pytest.mark.ranks(2, kind="thread")
def test_a_call_returns_what_its_type_says(group: SharedMemoryGroup, rank: int) -> None:
    any_group: phalanx.Group = group  # it has everything that a group has
    tensor = torch.ones(2)
    work = any_group.all_reduce(tensor, async_op=True)
    assert_type(work, phalanx.Work)
    work.wait()
    assert isinstance(work, phalanx.Work)
    if rank == 0:
        any_group.send(tensor, 1)
    else:
        source = any_group.recv(tensor)
        assert_type(source, int)
        assert source == 0


def test_the_package_says_that_it_has_types() -> None:
    assert (Path(phalanx.__file__).parent / "py.typed").exists()
