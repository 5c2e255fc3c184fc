from __future__ import annotations

import copy
import io
import pickle

import pytest
import torch
from torch.multiprocessing.reductions import reduce_tensor
from torch.utils.data import DataLoader, TensorDataset

from phalanx.errors import UsageError
from tests.virtual_gpus.in_child import on_virtual_devices


@pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")
@on_virtual_devices(2, face="cuda")
def test_storages_are_made_on_a_device() -> None:
    storage = torch.UntypedStorage(10, device="cuda:1")
    assert (storage.device, len(storage)) == (torch.device("cuda:1"), 10)
    assert list(torch.UntypedStorage([1, 2, 3], device="cuda")) == [1, 2, 3]
    assert len(torch.UntypedStorage(device="cuda")) == 0
    assert torch.TypedStorage(5, dtype=torch.float, device="cuda").device.type == "cuda"
    assert torch.UntypedStorage._new_shared(4, device="cuda").device.type == "cuda"


@on_virtual_devices(1, face="cuda")
def test_storages_elsewhere_are_made_as_before() -> None:
    assert torch.UntypedStorage(3).device.type == "cpu"
    assert torch.UntypedStorage(3, device="meta").device.type == "meta"
    assert torch.UntypedStorage(3).resize_(5).nbytes() == 5


@on_virtual_devices(1, face="cuda")
def test_a_resized_storage_keeps_its_contents_and_is_counted() -> None:
    tensor = torch.arange(4.0, device="cuda")
    storage = tensor.untyped_storage()
    storage.resize_(4096)
    assert torch.cuda.memory_allocated() == 4096
    assert tensor.tolist() == [0, 1, 2, 3]
    storage.resize_(0)
    assert torch.cuda.memory_allocated() == 0


@on_virtual_devices(1, face="cuda")
def test_a_tensor_is_not_sent_to_another_process() -> None:
    tensor = torch.ones(3, device="cuda").share_memory_()
    with pytest.raises(UsageError, match=r"this is a virtual GPU(.|\n)*send tensor.cpu\(\)"):
        reduce_tensor(tensor)


@on_virtual_devices(2, face="cuda")
def test_tensors_are_saved_with_their_device() -> None:
    tensor, buffer = torch.ones(3, device="cuda:1"), io.BytesIO()
    torch.save(tensor, buffer)
    for place, expected in ((None, "cuda:1"), ("cuda:0", "cuda:0"), ("cpu", "cpu"), ({"cuda:1": "cuda:0"}, "cuda:0")):
        buffer.seek(0)
        assert torch.load(buffer, map_location=place).device == torch.device(expected)
    assert pickle.loads(pickle.dumps(tensor)).device == copy.deepcopy(tensor).device == tensor.device


@on_virtual_devices(1, face="cuda")
def test_host_memory_can_be_pinned() -> None:
    tensor = torch.ones(3).pin_memory()
    assert tensor.is_pinned()
    assert torch.ones(3, pin_memory=True).is_pinned()
    assert not torch.ones(3).is_pinned()
    assert tensor.cuda(non_blocking=True).tolist() == [1, 1, 1]
    torch.cuda.check_error(torch.cuda.cudart().cudaHostRegister(tensor.data_ptr(), tensor.nbytes, 0))


@on_virtual_devices(1, face="cuda")
def test_a_data_loader_pins_its_batches() -> None:
    batches = DataLoader(TensorDataset(torch.arange(8.0)), batch_size=4, pin_memory=True)
    assert [batch.is_pinned() for (batch,) in batches] == [True, True]
