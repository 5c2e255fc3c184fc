from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.virtual_gpus.in_child import on_virtual_devices

cuda: Any = torch.cuda  # its legacy types are unknown to type checkers


@on_virtual_devices(2, face="cuda")
def test_a_legacy_type_makes_tensors_on_the_current_device() -> None:
    with torch.cuda.device(1):
        assert cuda.FloatTensor(2, 3).device == torch.device("cuda:1")
    assert cuda.LongTensor([1, 2], device=1).tolist() == [1, 2]
    assert cuda.HalfTensor().shape == (0,)
    assert cuda.DoubleTensor(torch.Size([2, 2])).dtype == torch.float64


@on_virtual_devices(1, face="cuda")
def test_tensors_are_instances_of_their_legacy_type() -> None:
    tensor = torch.ones(1, device="cuda")
    assert isinstance(tensor, cuda.FloatTensor)
    assert not isinstance(tensor, cuda.DoubleTensor)
    assert not isinstance(torch.ones(1), cuda.FloatTensor)


@on_virtual_devices(1, face="cuda")
def test_tensors_are_converted_by_legacy_type() -> None:
    assert torch.ones(1).type(cuda.LongTensor).dtype == torch.int64
    assert torch.ones(1).type("torch.cuda.HalfTensor").dtype == torch.float16
    assert torch.ones(1, device="cuda").type("torch.FloatTensor").device.type == "cpu"


@pytest.mark.filterwarnings("ignore:.*deprecated")
@on_virtual_devices(1, face="cuda")
def test_a_legacy_type_can_be_the_default() -> None:
    torch.set_default_tensor_type("torch.cuda.DoubleTensor")
    made = torch.ones(1)
    torch.set_default_device(None)
    torch.set_default_tensor_type(torch.FloatTensor)
    assert (made.device.type, made.dtype) == ("cuda", torch.float64)
    assert (torch.ones(1).device.type, torch.ones(1).dtype) == ("cpu", torch.float32)


@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")
@on_virtual_devices(1, face="cuda")
def test_legacy_storages_are_made_on_the_device() -> None:
    assert cuda.FloatStorage([1.0, 2.0]).tolist() == [1.0, 2.0]
    assert torch.ones(2, device="cuda").storage().get_device() == 0
