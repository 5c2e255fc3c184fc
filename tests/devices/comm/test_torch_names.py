"""torch.nn.parallel over the functions that phalanx puts into torch._C."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.parallel import comm
from torch.nn.parallel import gather as gather_any
from torch.nn.parallel import scatter as scatter_any

from tests.virtual_gpus.both_faces import assert_equal, on_both_faces


@on_both_faces
def test_torchs_comm_functions_work_and_alias_as_on_gpus(device_type: str) -> None:
    source = torch.randn(4, 2, device=f"{device_type}:0")
    copies = comm.broadcast(source, [0, 1])
    assert copies[0].data_ptr() == source.data_ptr()
    assert_equal(copies[1], source)
    out = [torch.empty(4, 2, device=f"{device_type}:{index}") for index in (0, 1)]
    assert comm.broadcast(source, out=out)[1] is out[1]
    pieces = comm.scatter(source, [0, 1], dim=-1)
    assert pieces[0].data_ptr() == source.data_ptr()
    assert comm.scatter(source, out=[out[0][:1], out[1][1:]])[1].device.index == 1
    assert_equal(comm.gather(pieces, -1, 1), source)
    assert comm.gather(pieces, -1).device.index == 0
    assert comm.gather(pieces, -1, "cpu").device.type == "cpu"
    target = torch.empty(4, 2)
    assert comm.gather(pieces, 1, out=target) is target
    mixed = [source, source.to_sparse(), source.long()]
    same, others = comm.broadcast_coalesced(mixed, [0, 1], 10)
    assert all(one is other for one, other in zip(same, mixed, strict=True))
    for total, tensor in zip(comm.reduce_add_coalesced([same, others], 0), mixed, strict=True):
        assert_equal(total.to_dense(), tensor.to_dense() * 2)
    for wrong, words in (
        (lambda: comm.scatter(source, []), "Expected at least one device to scatter to"),
        (lambda: comm.gather([]), "Expected at least one tensor to gather from"),
        (lambda: comm.broadcast_coalesced([source], [1, 0]), r"All tensors must be on devices\[0\]: 1"),
    ):
        with pytest.raises(RuntimeError, match=words):
            wrong()  # type: ignore[no-untyped-call]


@on_both_faces
def test_torchs_structured_scatter_and_gather_carry_gradients(device_type: str) -> None:
    source = torch.arange(4.0, device=f"{device_type}:1", requires_grad=True)
    replicas = scatter_any({"x": source, "name": "n"}, [0, 1])
    joined = gather_any([replica["x"] ** 2 for replica in replicas], torch.device(device_type, 0))
    joined.sum().backward()
    assert source.grad is not None
    assert source.grad.tolist() == [0, 2, 4, 6]


def _train(model: nn.Module, batches: torch.Tensor, device: str) -> list[float]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    losses = []
    for batch in batches.to(device):
        optimizer.zero_grad()
        loss = (model(batch) - batch.sum(1, keepdim=True)).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.slow
@on_both_faces
def test_data_parallel_trains_like_one_device(device_type: str) -> None:
    torch.manual_seed(1)
    plain = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 1)).double()
    copy = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 1)).double()
    copy.load_state_dict(plain.state_dict())
    batches = torch.randn(5, 10, 6, dtype=torch.float64)
    expected = _train(plain, batches, "cpu")
    parallel = nn.DataParallel(copy.to(f"{device_type}:0"))
    assert len(parallel.device_ids) == 4
    assert _train(parallel, batches, f"{device_type}:0") == pytest.approx(expected, rel=1e-9)
    assert expected[-1] < expected[0]
