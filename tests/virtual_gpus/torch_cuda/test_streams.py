from __future__ import annotations

import ctypes

import pytest
import torch

from phalanx.errors import UsageError
from tests.virtual_gpus.in_child import on_virtual_devices

_MS = 1_000_000  # cycles of torch.cuda._sleep


@on_virtual_devices(2, face="cuda")
def test_a_stream_is_current_inside_its_context() -> None:
    stream = torch.cuda.Stream(device=1)
    with torch.cuda.stream(stream):
        assert torch.cuda.current_stream() == stream
        assert torch.cuda.current_device() == 1
    assert torch.cuda.current_stream(1) == torch.cuda.default_stream(1)
    assert torch.cuda.current_device() == 0
    with stream:
        assert torch.cuda.current_stream(1) == stream


@on_virtual_devices(2, face="cuda")
def test_a_priority_is_kept_within_the_range() -> None:
    low, high = torch.cuda.current_stream().priority_range()
    assert (low, high) == (0, -3)
    assert [torch.cuda.Stream(priority=priority).priority for priority in (5, 0, -1, -9)] == [0, 0, -1, -3]


@on_virtual_devices(2, face="cuda")
def test_a_stream_can_be_passed_by_its_number() -> None:
    stream = torch.cuda.Stream(device=1)
    assert torch.cuda.ExternalStream(stream.cuda_stream, device=1) == stream
    assert torch.cuda.get_stream_from_external(stream.cuda_stream, 1) == stream
    assert torch.cuda.default_stream(1).cuda_stream == 0
    assert torch.cuda.ExternalStream(0, device=1) == torch.cuda.default_stream(1)


@on_virtual_devices(1, face="cuda")
def test_a_stream_of_another_library_is_refused() -> None:
    with pytest.raises(RuntimeError, match="no stream of a virtual GPU"):
        torch.cuda.ExternalStream(0x7F00DEADBEEF)


@on_virtual_devices(1, face="cuda")
def test_the_runtime_makes_streams() -> None:
    handle = ctypes.c_ulonglong(0)
    runtime = torch.cuda.cudart()
    assert runtime.cudaStreamCreate(ctypes.addressof(handle)) == runtime.cudaError.success
    assert torch.cuda.ExternalStream(handle.value).cuda_stream == handle.value != 0
    torch.cuda.check_error(runtime.cudaStreamDestroy(handle.value))


@on_virtual_devices(2, face="cuda")
def test_events_order_streams_in_virtual_time() -> None:
    first, second = torch.cuda.Stream(), torch.cuda.Stream()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record(first)
    with torch.cuda.stream(first):
        torch.cuda._sleep(20 * _MS)
    second.wait_stream(first)
    end.record(second)
    assert not second.query()
    second.synchronize()
    assert end.query()
    assert start.elapsed_time(end) >= 20
    assert end.device == torch.device("cuda:0")


@on_virtual_devices(1, face="cuda")
def test_times_are_refused_in_torchs_words() -> None:
    timed = torch.cuda.Event(enable_timing=True)
    with pytest.raises(ValueError, match="enable_timing=True"):
        torch.cuda.Event().elapsed_time(timed)
    with pytest.raises(ValueError, match="must be recorded"):
        timed.elapsed_time(torch.cuda.Event(enable_timing=True))


@on_virtual_devices(1, face="cuda")
def test_events_are_not_shared_between_processes() -> None:
    with pytest.raises(UsageError, match=r"this is a virtual GPU(.|\n)*do  .*barrier"):
        torch.cuda.Event(interprocess=True).ipc_handle()
    with pytest.raises(UsageError, match=r"this is a virtual GPU(.|\n)*do  .*barrier"):
        torch.cuda.Event.from_ipc_handle(0, b"")


@on_virtual_devices(1, face="cuda")
def test_torchs_own_streams_and_events_work_beside() -> None:
    stream, event = torch.Stream(device="cuda"), torch.Event(device="cuda")
    event.record(stream)
    torch.cuda.current_stream().wait_event(event)
    torch.cuda.current_stream().wait_stream(stream)
    assert isinstance(torch.cuda.Stream(), torch.Stream)
    assert isinstance(torch.cuda.Event(), torch.Event)
    torch.ones(3, device="cuda").record_stream(torch.cuda.Stream())


@on_virtual_devices(2, face="cuda")
def test_streams_and_events_show_themselves() -> None:
    assert repr(torch.cuda.default_stream(1)) == "<torch.cuda.Stream device=cuda:1 cuda_stream=0x0>"
    assert repr(torch.cuda.Event()) == "<torch.cuda.Event uninitialized>"
    assert len({torch.cuda.default_stream(0), torch.cuda.default_stream(1), torch.cuda.current_stream(1)}) == 2
