from __future__ import annotations

import pytest
import torch

from tests.virtual_gpus.in_child import on_virtual_devices


@on_virtual_devices(2)
def test_a_stream_context_switches_stream_and_device_and_restores_both() -> None:
    virtual = torch.get_device_module("virtual")
    on_one, on_zero = virtual.Stream(device="virtual:1"), virtual.Stream()
    assert (on_one.device, on_zero.device) == (torch.device("virtual:1"), torch.device("virtual:0"))
    assert virtual.current_stream() == virtual.default_stream()
    with virtual.stream(on_one):
        assert virtual.current_device() == 1
        assert virtual.current_stream() == on_one == torch.accelerator.current_stream()
        with virtual.stream(on_zero):
            assert virtual.current_device() == 0
            with virtual.stream(on_one), virtual.stream(None):
                assert virtual.current_stream() == on_one
            assert virtual.current_stream() == on_zero
        assert virtual.current_stream(0) == virtual.default_stream(0)
        assert virtual.current_stream() == on_one
    assert virtual.current_device() == 0
    assert virtual.current_stream(1) == virtual.default_stream(1)
    virtual.set_stream(on_one)
    assert (virtual.current_device(), virtual.current_stream()) == (1, on_one)
    virtual.set_stream(None)
    assert virtual.current_stream() == on_one


@on_virtual_devices(2)
def test_streams_are_equal_by_device_and_handle() -> None:
    virtual = torch.get_device_module("virtual")
    stream = virtual.Stream(device=1)
    with virtual.stream(stream):
        again = virtual.current_stream(1)
    assert again == stream
    assert hash(again) == hash(stream)
    assert isinstance(again, virtual.Stream)
    assert virtual.default_stream(0) != virtual.default_stream(1)
    assert stream != virtual.Stream(device=1)
    assert "virtual:1" in repr(stream)
    assert virtual.Stream.priority_range() == (0, -1)
    virtual.Stream(priority=-5)  # CUDA's streams take any number too


@on_virtual_devices(2)
def test_events_order_streams_and_measure_time() -> None:
    virtual = torch.get_device_module("virtual")
    start, end = virtual.Event(enable_timing=True), virtual.Event(enable_timing=True)
    assert isinstance(start, virtual.Event)
    assert isinstance(start, torch.Event)
    waiting = virtual.Stream(device=1)
    start.record()
    virtual._sleep(30_000_000)
    end.record()
    assert not end.query()
    waiting.wait_event(end)
    assert not waiting.query()
    end.synchronize()
    assert start.elapsed_time(end) >= 30
    waiting.synchronize()
    assert waiting.query()
    virtual._sleep(20_000_000)
    waiting.wait_stream(virtual.current_stream())
    assert not waiting.query()
    virtual.synchronize()
    assert waiting.query()
    elsewhere = waiting.record_event(virtual.Event(enable_timing=True))
    elsewhere.synchronize()
    with pytest.raises(RuntimeError, match="same device"):
        start.elapsed_time(elsewhere)
    torch.ones(1, device="virtual:0").record_stream(waiting)
