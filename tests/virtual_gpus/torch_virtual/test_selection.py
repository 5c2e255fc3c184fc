from __future__ import annotations

import threading

import pytest
import torch

from tests.virtual_gpus.in_child import on_virtual_devices


@on_virtual_devices(4, memory="1GiB")
def test_the_module_describes_its_devices() -> None:
    virtual = torch.get_device_module("virtual")
    assert virtual is torch.get_device_module() is torch.virtual  # type: ignore[attr-defined]
    assert virtual.device_count() == torch.accelerator.device_count() == 4
    assert virtual.is_available()
    assert virtual.is_initialized()
    assert not virtual._is_in_bad_fork()
    properties = virtual.get_device_properties("virtual:3")
    assert (properties.name, properties.total_memory) == ("Virtual GPU", 1 << 30)
    assert virtual.get_device_name(0) == "Virtual GPU"
    assert virtual.get_device_capability() == (0, 0)
    assert virtual.can_device_access_peer(0, 1)
    assert not virtual.can_device_access_peer(1, 1)
    assert virtual.is_bf16_supported()
    virtual.init()
    virtual.ipc_collect()
    assert set(virtual.__all__) <= set(dir(virtual))


@on_virtual_devices(4)
def test_the_current_device_decides_where_new_tensors_go() -> None:
    virtual = torch.get_device_module("virtual")
    elsewhere = torch.ones(2, device="virtual:3")
    assert torch.ones(1, device="virtual").device.index == 0
    with virtual.device(1):
        assert torch.ones(1, device="virtual").device.index == 1
        assert torch.ones(1).virtual().device.index == 1  # type: ignore[attr-defined]
        assert (elsewhere + 1).device.index == elsewhere.new_ones(1).device.index == 3
        virtual.set_device("virtual:2")
        assert virtual.current_device() == torch.accelerator.current_device_index() == 2
        with virtual.device(None), virtual.device(-1), virtual.device("virtual"):
            assert virtual.current_device() == 2
        with virtual.device_of(elsewhere), virtual.device_of(torch.ones(1)):
            assert virtual.current_device() == 3
    assert virtual.current_device() == 0
    assert elsewhere.is_virtual  # type: ignore[attr-defined]
    assert elsewhere.to("virtual:3") is elsewhere
    assert virtual._maybe_exchange_device(-1) == -1
    assert virtual._exchange_device(1) == 0
    assert virtual.current_device() == 1
    seen = []
    other = threading.Thread(target=lambda: seen.append(virtual.current_device()))
    other.start()
    other.join(10)
    assert seen == [0]


@on_virtual_devices(2)
def test_devices_that_are_not_there_are_refused() -> None:
    virtual = torch.get_device_module("virtual")
    context = virtual.device(5)
    for use in (virtual.set_device, virtual.synchronize, virtual.current_stream, virtual.memory_allocated):
        with pytest.raises(
            RuntimeError, match=r"there is no virtual:5, only virtual:0 to virtual:1\n  do +set up more"
        ):
            use(5)
        with pytest.raises(ValueError, match="Expected a virtual device, but got: cpu"):
            use("cpu")
    for build in (lambda: torch.ones(1, device="virtual:5"), context.__enter__, lambda: virtual.Stream(device=5)):
        with pytest.raises(RuntimeError, match="5"):
            build()
    assert virtual.current_device() == 0
    for device in (None, "virtual", "virtual:1", 1, torch.device("virtual")):
        virtual.synchronize(device)
    with pytest.raises(RuntimeError, match=r"virtual:0 and virtual:1|same device"):
        torch.ones(1, device="virtual:0") + torch.ones(1, device="virtual:1")
