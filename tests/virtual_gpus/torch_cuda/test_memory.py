from __future__ import annotations

import pickle

import pytest
import torch

from tests.virtual_gpus.in_child import on_virtual_devices


@on_virtual_devices(2, face="cuda", memory="1GiB")
def test_free_memory_is_what_is_not_in_use() -> None:
    kept = torch.empty(1 << 20, dtype=torch.uint8, device="cuda:1")
    assert torch.cuda.mem_get_info(1) == ((1 << 30) - kept.nbytes, 1 << 30)
    assert torch.cuda.memory_allocated(1) == torch.cuda.memory_reserved(1) == kept.nbytes
    assert torch.cuda.device_memory_used(1) == kept.nbytes
    assert torch.cuda.memory_allocated(0) == 0


@on_virtual_devices(1, face="cuda")
def test_peaks_stay_until_they_are_reset() -> None:
    torch.empty(1 << 20, dtype=torch.uint8, device="cuda")
    assert (torch.cuda.memory_allocated(), torch.cuda.max_memory_allocated()) == (0, 1 << 20)
    torch.cuda.reset_peak_memory_stats()
    torch.cuda.reset_accumulated_memory_stats()
    assert torch.cuda.max_memory_allocated() == 0
    assert torch.cuda.memory_stats()["allocation.all.allocated"] == 0


@on_virtual_devices(2, face="cuda")
def test_a_snapshot_agrees_with_the_statistics() -> None:
    kept = [torch.empty(size, dtype=torch.uint8, device=f"cuda:{i % 2}") for i, size in enumerate((1, 700, 3 << 20))]
    segments = torch.cuda.memory_snapshot()
    assert len(segments) == len(kept)
    for device in range(2):
        stats = torch.cuda.memory_stats(device)
        here = [segment for segment in segments if segment["device"] == device]
        assert sum(segment["total_size"] for segment in here) == stats["reserved_bytes.all.current"]
        assert sum(segment["requested_size"] for segment in here) == stats["requested_bytes.all.current"]
        assert sum(segment["segment_type"] == "large" for segment in here) == stats["segment.large_pool.current"]
    assert pickle.loads(pickle.dumps(torch.cuda.memory._snapshot()))["segments"] == segments


@on_virtual_devices(1, face="cuda")
def test_a_summary_can_be_printed() -> None:
    assert "PyTorch CUDA memory summary" in torch.cuda.memory_summary()
    assert "Allocated memory" in torch.cuda.memory_summary(abbreviated=True)
    assert "allocated_bytes" in torch.cuda.memory_stats_as_nested_dict()
    torch.cuda.empty_cache()


@on_virtual_devices(2, face="cuda", memory="64MiB")
def test_a_fraction_limits_one_device() -> None:
    torch.cuda.set_per_process_memory_fraction(0.25, 1)
    assert torch.cuda.get_per_process_memory_fraction(1) == 0.25
    with pytest.raises(torch.OutOfMemoryError):
        torch.empty(32 << 20, dtype=torch.uint8, device="cuda:1")
    torch.empty(32 << 20, dtype=torch.uint8, device="cuda:0")
    assert torch.cuda.mem_get_info(1)[1] == 64 << 20


@on_virtual_devices(2, face="cuda")
def test_memory_can_be_had_by_address() -> None:
    stream = torch.cuda.Stream(device=1)
    address = torch.cuda.caching_allocator_alloc(1000, device=1, stream=stream)
    assert torch.cuda.memory_allocated(1) == 1024
    assert torch.cuda.memory_snapshot()[0]["address"] == address
    assert torch.cuda.memory_snapshot()[0]["stream"] == stream.cuda_stream
    torch.cuda.caching_allocator_delete(address)
    assert torch.cuda.memory_allocated(1) == 0
    with pytest.raises(RuntimeError, match="invalid device pointer"):
        torch.cuda.caching_allocator_delete(address)


@on_virtual_devices(1, face="cuda")
def test_a_history_is_not_kept_and_says_so() -> None:
    with pytest.warns(UserWarning, match="this is a virtual GPU: it keeps no history"):
        torch.cuda.memory._record_memory_history()
    torch.cuda.memory._record_memory_history(enabled=None)


@on_virtual_devices(1, face="cuda")
def test_the_allocator_is_torchs_native_one() -> None:
    torch.cuda.init()  # torch ignores the switch before
    assert torch.cuda.get_allocator_backend() == "native"
    with torch.cuda.caching_allocator_disabled():
        assert not torch._C._cuda_cudaCachingAllocator_is_enabled()
    assert torch._C._cuda_cudaCachingAllocator_is_enabled()
