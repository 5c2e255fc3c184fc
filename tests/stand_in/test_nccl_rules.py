"""What NCCL refuses is refused on virtual GPUs, in the same words."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import torch

import phalanx
from phalanx.errors import OperationTimeoutError
from phalanx.torch_backend.untyped import dist

Call = Callable[[torch.device], Any]


def _ones(device: torch.device, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.ones(shape or (4,), device=device, dtype=dtype)


_REFUSED: dict[str, tuple[Call, type[Exception], str]] = {
    "cpu": (
        lambda _: dist.all_reduce(torch.ones(2)),
        RuntimeError,
        "No backend type associated with device type cpu",
    ),
    "cpu output": (
        lambda d: dist.all_gather([torch.ones(4), torch.ones(4)], _ones(d)),
        RuntimeError,
        "No backend type associated with device type cpu",
    ),
    "not contiguous": (lambda d: dist.all_reduce(_ones(d, 3, 4).t()), ValueError, "Tensors must be contiguous"),
    "not contiguous in a broadcast": (
        lambda d: dist.broadcast(_ones(d, 3, 4).t(), 0),
        ValueError,
        "Tensors must be contiguous",
    ),
    "sparse": (
        lambda d: dist.all_reduce(_ones(d, 3, 4).to_sparse()),
        RuntimeError,
        "NCCL does not support all_reduce with sparse tensors",
    ),
    "sparse broadcast": (
        lambda d: dist.group.WORLD.broadcast([_ones(d, 3, 4).to_sparse()]),
        ValueError,
        "Tensors must be CUDA and dense",
    ),
    "dtype": (
        lambda d: dist.all_reduce(_ones(d, dtype=torch.int16)),
        TypeError,
        "Input tensor data type is not supported for NCCL process group",
    ),
    "complex maximum": (
        lambda d: dist.all_reduce(_ones(d, dtype=torch.complex64), op=dist.ReduceOp.MAX),
        ValueError,
        "all_reduce does not support .* on complex tensors",
    ),
    "bits": (
        lambda d: dist.all_reduce(_ones(d, dtype=torch.int32), op=dist.ReduceOp.BAND),
        ValueError,
        "Cannot use ReduceOp.BAND with NCCL",
    ),
    "average of booleans": (
        lambda d: dist.all_reduce(_ones(d, dtype=torch.bool), op=dist.ReduceOp.AVG),
        TypeError,
        "Cannot use ReduceOp.AVG with boolean inputs",
    ),
    "any source": (
        lambda d: dist.recv(_ones(d)),
        NotImplementedError,
        "ProcessGroupNCCL does not support recvAnysource",
    ),
    "two devices": (
        lambda d: dist.all_gather([_ones(torch.device("cuda", 0)), _ones(torch.device("cuda", 1))], _ones(d)),
        ValueError,
        "Expected list of tensors on the same device",
    ),
    "two dtypes": (
        lambda d: dist.group.WORLD.allreduce_coalesced([_ones(d), _ones(d, dtype=torch.int32)]),
        TypeError,
        "Tensors must have identical type",
    ),
}


@pytest.mark.ranks(2)
def test_what_nccl_refuses_is_refused_before_anything_is_sent(nccl: torch.device) -> None:
    for case, (call, kind, words) in _REFUSED.items():
        with pytest.raises(kind, match=words):
            call(nccl)
        value = _ones(nccl)
        dist.all_reduce(value)  # the group is as it was
        assert value.tolist() == [2.0] * 4, case


@pytest.mark.ranks(2)
def test_two_ranks_on_one_device_are_refused_by_name(gpus: int, rank: int) -> None:
    with phalanx.stand_in_for("nccl"):
        dist.init_process_group("nccl")
        words = "Duplicate GPU detected : rank 1 and rank 0 both on CUDA device 0"
        with pytest.raises(dist.DistBackendError, match=words):
            dist.all_reduce(torch.ones(2, device="cuda:0"))
        dist.destroy_process_group()


@pytest.mark.ranks(2)
def test_two_ranks_bound_to_one_device_are_refused_at_once(gpus: int) -> None:
    with phalanx.stand_in_for("nccl"), pytest.raises(dist.DistBackendError, match="both on CUDA device 1"):
        dist.init_process_group("nccl", device_id=torch.device("cuda", 1))


@pytest.mark.ranks(2)
def test_two_ranks_in_a_barrier_on_one_device_are_refused(gpus: int) -> None:
    with phalanx.stand_in_for("nccl"):
        dist.init_process_group("nccl")
        with pytest.raises(dist.DistBackendError, match="Duplicate GPU detected"):
            dist.barrier(device_ids=[0])
        dist.destroy_process_group()


@pytest.mark.ranks(2)
def test_two_ranks_that_exchange_messages_on_one_device_are_refused(gpus: int, rank: int) -> None:
    with phalanx.stand_in_for("nccl"):
        dist.init_process_group("nccl")
        store = dist.group.WORLD.get_group_store()
        if rank == 0:
            dist.isend(torch.ones(1, device="cuda:0"), 1)
            store.set("sent", "yes")
            store.wait(["refused"])
        else:
            store.wait(["sent"])
            with pytest.raises(dist.DistBackendError, match="rank 1 and rank 0 both on CUDA device 0"):
                dist.recv(torch.ones(1, device="cuda:0"), 0)
            store.set("refused", "yes")
        dist.destroy_process_group()


@pytest.mark.ranks(2)
def test_a_bound_rank_keeps_to_its_device(gpus: int, rank: int) -> None:
    with phalanx.stand_in_for("nccl"):
        dist.init_process_group("nccl", device_id=torch.device("cuda", rank))
        with pytest.raises(dist.DistBackendError, match="not on device passed to init_process_group"):
            dist.all_reduce(torch.ones(2, device=f"cuda:{1 - rank}"))
        dist.destroy_process_group()


@pytest.mark.ranks(2)
def test_ranks_may_all_change_to_another_device(nccl: torch.device, rank: int) -> None:
    for device in (nccl, torch.device("cuda", 1 - rank), nccl):
        value = torch.ones(2, device=device)
        dist.all_reduce(value)
        assert value.tolist() == [2.0, 2.0]


@pytest.mark.ranks(2)
def test_a_timeout_is_what_programs_for_nccl_expect(nccl: torch.device, rank: int) -> None:
    group = dist.new_group(timeout=timedelta(seconds=20))
    dist.all_reduce(torch.ones(1, device=nccl), group=group)
    if rank == 0:
        with pytest.raises(dist.DistBackendError, match="caught collective operation timeout") as raised:
            dist.all_reduce(torch.ones(1, device=nccl), group=group, async_op=True).wait(timedelta(seconds=0.05))
        assert isinstance(raised.value, OperationTimeoutError)
        copied = pickle.loads(pickle.dumps(raised.value))
        assert (type(copied), str(copied)) == (type(raised.value), str(raised.value))
    dist.barrier(device_ids=[rank])
