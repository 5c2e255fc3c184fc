from __future__ import annotations

import pytest
import torch
from torch.cuda import nccl

from phalanx.errors import UsageError
from tests.virtual_gpus.in_child import on_virtual_devices


def one_each(size: int = 4) -> list[torch.Tensor]:
    return [torch.full((size,), index + 1.0, device=f"cuda:{index}") for index in range(torch.cuda.device_count())]


@on_virtual_devices(4, face="cuda")
def test_all_reduce_adds_on_every_device() -> None:
    tensors = one_each()
    assert nccl.is_available(tensors)
    nccl.all_reduce(tensors)
    assert [(tensor.device.index, tensor.tolist()) for tensor in tensors] == [(i, [10.0] * 4) for i in range(4)]


@pytest.mark.parametrize(("op", "expected"), [(0, 10.0), (1, 24.0), (2, 4.0), (3, 1.0)])
@on_virtual_devices(4, face="cuda")
def test_reduce_combines_on_the_root(op: int, expected: float) -> None:
    output = torch.empty(4, device="cuda:2")
    nccl.reduce(one_each(), output=output, root=2, op=op)
    assert output.tolist() == [expected] * 4


@on_virtual_devices(4, face="cuda")
def test_broadcast_gather_and_scatter_move_data() -> None:
    tensors = one_each()
    gathered = [torch.empty(16, device=tensor.device) for tensor in tensors]
    nccl.all_gather(tensors, gathered)
    assert gathered[3].tolist() == [1.0] * 4 + [2.0] * 4 + [3.0] * 4 + [4.0] * 4
    pieces = [torch.empty(1, device=tensor.device) for tensor in tensors]
    nccl.reduce_scatter(tensors, pieces)
    assert [piece.item() for piece in pieces] == [10.0] * 4
    nccl.broadcast(tensors, root=1)
    assert tensors[3].tolist() == [2.0] * 4


@on_virtual_devices(1, face="cuda")
def test_the_version_is_one_that_programs_can_compare() -> None:
    assert len(nccl.version()) == 3
    assert nccl.version() >= (2, 10)
    with pytest.raises(UsageError, match="init_process_group"):
        nccl.unique_id()


@on_virtual_devices(2, face="cuda")
def test_an_unknown_reduction_is_refused() -> None:
    with pytest.raises(RuntimeError, match="no reduction 9"):
        nccl.all_reduce(one_each(), op=9)


@on_virtual_devices(4, face="cuda")
def test_data_parallel_trains() -> None:
    linear = torch.nn.Linear(4, 2).cuda()
    torch.nn.DataParallel(linear)(torch.ones(8, 4, device="cuda")).sum().backward()
    assert linear.weight.grad is not None
    assert linear.weight.grad.tolist() == [[8.0] * 4] * 2
