from __future__ import annotations

import pytest
import torch

from phalanx import UsageError
from tests.virtual_gpus.in_child import on_virtual_devices

_BYTES = 32 * 1024 * 1024


@on_virtual_devices(2, memory="1GiB")
def test_every_device_counts_its_own_memory() -> None:
    virtual = torch.get_device_module("virtual")
    virtual.set_device(1)
    tensor = torch.empty(_BYTES, dtype=torch.uint8, device="virtual:0")
    for device in (0, "virtual:0", torch.device("virtual:0")):
        assert virtual.memory_allocated(device) == virtual.max_memory_allocated(device) == _BYTES
        assert virtual.memory_reserved(device) >= _BYTES
        free, total = virtual.mem_get_info(device)
        assert (total, total - free) == (1 << 30, virtual.device_memory_used(device))
        assert total - free >= _BYTES
    assert virtual.memory_allocated() == 0
    assert virtual.memory_stats(0)["allocated_bytes.all.current"] == _BYTES
    [segment] = virtual.memory_snapshot()
    assert (segment["device"], segment["requested_size"], segment["address"]) == (0, _BYTES, tensor.data_ptr())
    assert f"{_BYTES:,} bytes in tensors" in virtual.memory_summary(0)
    del tensor
    assert virtual.memory_allocated(0) == 0
    assert virtual.max_memory_allocated(0) == _BYTES
    virtual.reset_peak_memory_stats(0)
    virtual.reset_accumulated_memory_stats(0)
    assert virtual.max_memory_allocated(0) == 0
    virtual.empty_cache()
    assert virtual.max_memory_reserved(0) >= virtual.memory_reserved(0) == 0


@on_virtual_devices(2, memory="1GiB")
def test_a_device_can_be_made_smaller() -> None:
    virtual = torch.get_device_module("virtual")
    assert virtual.get_per_process_memory_fraction() == 1
    virtual.set_per_process_memory_fraction(1 / 64, 1)
    assert virtual.get_per_process_memory_fraction(1) == 1 / 64
    with pytest.raises(torch.OutOfMemoryError):
        torch.empty(_BYTES, dtype=torch.uint8, device="virtual:1")
    torch.empty(_BYTES, dtype=torch.uint8, device="virtual:0")
    with pytest.raises(UsageError, match=r"a memory fraction lies between 0 and 1, and 2 does not"):
        virtual.set_per_process_memory_fraction(2)


@on_virtual_devices(2)
def test_storages_and_pinned_memory_know_the_device() -> None:
    storage = torch.arange(4, device="virtual:1", dtype=torch.int16).untyped_storage()
    assert storage.clone().device == torch.device("virtual:1")
    assert storage.is_virtual  # type: ignore[attr-defined]
    storage.resize_(64)
    assert storage.nbytes() == 64
    assert torch.ones(2).untyped_storage().virtual().device.type == "virtual"  # type: ignore[attr-defined]
    rows = torch.utils.data.TensorDataset(torch.arange(8.0))
    for [batch] in torch.utils.data.DataLoader(rows, batch_size=4, pin_memory=True):
        assert batch.is_pinned()
        assert batch.to("virtual:1", non_blocking=True).device.index == 1
