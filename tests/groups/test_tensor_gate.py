"""The gate knows the tensors of the installed torch, and is as right with one that it does not know."""

from __future__ import annotations

import pytest
import torch

import phalanx
from phalanx import engine
from phalanx.groups import tensor_gate
from tests.checks import equal, raised, same
from tests.run_ranks import run_ranks


def test_the_layout_of_this_torchs_tensors_is_learned() -> None:
    assert tensor_gate.open_gate()


def _work_without_a_known_layout() -> None:
    group = phalanx.connect()
    equal(engine.open_gate(tensor_gate.judge, torch.int8, torch.uint8, []), False)
    for tensor in (torch.ones(4), torch.ones(8)[::2], torch._neg_view(-torch.ones(4))):
        group.all_reduce(tensor)
        same(tensor.resolve_neg().contiguous(), torch.full((4,), 2.0))
    freed = torch.ones(4)
    freed.untyped_storage().resize_(0)
    for awkward in (freed, torch.ones(4, device="meta"), torch._to_functional_tensor(torch.ones(4))):
        raised(phalanx.UsageError, group.all_reduce, awkward)


@pytest.mark.slow
def test_tensors_of_a_torch_with_another_layout_are_judged_one_by_one() -> None:
    run_ranks("process", 2, _work_without_a_known_layout)
