"""Tensor subclasses given to torch.distributed: results of functional collectives are waited for, others refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed._functional_collectives as functional
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, distribute_tensor

from phalanx.errors import UsageError
from phalanx.torch_backend.untyped import dist

pytestmark = [pytest.mark.ranks(2), pytest.mark.usefixtures("process_group")]


def _result() -> torch.Tensor:
    """Return the result of a functional collective that nobody has waited for."""
    result: torch.Tensor = functional.all_reduce(torch.full((50_000,), 1.0), "sum", dist.group.WORLD)
    return result


def test_the_result_of_a_functional_collective_can_be_given_to_any_call(rank: int) -> None:
    peer = 1 - rank
    tensor = _result()
    dist.all_reduce(tensor)
    assert tensor.unique().tolist() == [4.0]
    outputs = [torch.zeros(50_000) for _ in range(2)]
    dist.all_gather(outputs, _result())
    assert torch.cat(outputs).unique().tolist() == [2.0]
    tensor, received = _result(), torch.zeros(50_000)
    works: list[Any] = dist.batch_isend_irecv(
        [dist.P2POp(dist.isend, tensor, peer), dist.P2POp(dist.irecv, received, peer)]
    )
    for work in works:
        work.wait()
    assert received.unique().tolist() == [2.0]
    work = dist.broadcast(tensor := _result(), 1, async_op=True)
    work.wait()
    assert tensor.unique().tolist() == [2.0]


def test_a_dtensor_is_refused_with_what_to_pass_instead(rank: int) -> None:
    mesh = init_device_mesh("cpu", (2,))
    tensor = distribute_tensor(torch.ones(4), mesh, [Replicate()])
    with pytest.raises(UsageError, match=r"tensor is a DTensor, .* pass tensor.to_local\(\)"):
        dist.all_reduce(tensor)
    with pytest.raises(UsageError, match="DTensor"):
        dist.send(tensor, 1 - rank)
    local = tensor.to_local()
    dist.all_reduce(local)
    assert local.tolist() == [2.0] * 4
