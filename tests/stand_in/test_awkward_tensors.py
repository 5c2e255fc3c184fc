"""Tensors that are not plain memory, through the NCCL stand-in on virtual GPUs: right, or refused before it sends any.

The kinds are some of those in tests/contract/test_awkward_tensors.py, made on a GPU. Integers are averaged too.
"""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
import torch.distributed._functional_collectives as functional
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from phalanx.devices import races
from phalanx.torch_backend.untyped import dist
from tests.contract.awkward_calls import OPERATIONS, AveragingDoor, TorchDoor
from tests.contract.awkward_tensors import (
    REFUSED,
    RIGHT,
    DispatchingSubclass,
    Kind,
    PlainSubclass,
    Wrapper,
    refused,
)
from tests.contract.test_awkward_tensors import run_case, still_works

pytestmark = pytest.mark.slow


def _dtensor(t: Tensor) -> Tensor:
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.tensor import DTensor, Replicate

    mesh = DeviceMesh("cuda", [dist.get_rank()], _init_backend=False)
    return DTensor.from_local(t, mesh, [Replicate()], run_check=False)


def _freed(t: Tensor) -> Tensor:
    copy = t.clone()
    copy.untyped_storage().resize_(0)
    return copy


def _inference(t: Tensor) -> Tensor:
    with torch.inference_mode():
        return t.clone()


def _negative(t: Tensor) -> Tensor:
    return torch._neg_view((-t).contiguous())


def _resolved(t: Tensor) -> Tensor:
    return t.detach().resolve_neg().resolve_conj().clone()


def _awaited(t: Any) -> Tensor:
    values: Tensor = t.trigger_wait()
    return values.clone()


EVERYDAY = [
    Kind("plain", lambda t: t),
    Kind("beginning inside", lambda t: torch.cat([t.new_zeros(3), t.flatten()])[3:].view(t.shape)),
    Kind("made for inference", _inference, values_of=_inference),
    Kind("plain subclass", lambda t: t.as_subclass(PlainSubclass), values_of=lambda t: t.as_subclass(Tensor)),
    Kind("lazy negative", _negative, values_of=_resolved),
    Kind(
        "result of a functional collective", lambda t: functional.AsyncCollectiveTensor(t.clone()), values_of=_awaited
    ),
]
KINDS = [
    *EVERYDAY,
    Kind("wants gradients", lambda t: t.clone().requires_grad_()),
    Kind("parameter", torch.nn.Parameter),
    refused("dispatching subclass", lambda t: t.clone().as_subclass(DispatchingSubclass)),
    refused("wrapper subclass", Wrapper),
    refused("FakeTensor", lambda t: FakeTensorMode().from_tensor(t)),
    refused("DTensor", _dtensor),
    refused("meta", lambda t: t.to("meta")),
    refused("sparse COO", lambda t: t.to_sparse()),
    refused("sparse CSR", lambda t: t.to_sparse_csr()),
    refused("nested", lambda t: torch.nested.nested_tensor(list(t.unbind()))),
    refused("storage resized to 0", _freed),
]
_AVERAGED = ("all_reduce", "reduce")  # how the names of operations begin


def _run(door: Any, kind: Kind, names: tuple[str, ...] = ("",)) -> list[str]:
    warnings.simplefilter("ignore")
    failures = []
    for operation in OPERATIONS:
        if operation.name.startswith(names):
            outcome = run_case(door, kind, operation, (6, 2), is_torch=True)
            after = still_works(door)
            failures += [f"{operation.name}: {told}" for told in (outcome, after) if told not in (RIGHT, REFUSED, "")]
    return failures


@pytest.mark.ranks(2)
@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_every_kind_of_tensor_is_moved_right_or_refused(nccl: torch.device, kind: Kind) -> None:
    assert _run(TorchDoor(nccl), kind) == []
    with races.races_mode("raise"):  # it looks at tensors before the engine does
        assert _run(TorchDoor(nccl), kind) == []


@pytest.mark.ranks(2)
@pytest.mark.parametrize("kind", EVERYDAY, ids=lambda kind: kind.name)
def test_averages_of_integers_are_right_for_every_kind_of_tensor(nccl: torch.device, kind: Kind) -> None:
    for dtype in (torch.int32, torch.uint8):
        assert _run(AveragingDoor(nccl), Kind(**{**vars(kind), "dtype": dtype}), _AVERAGED) == [], dtype
