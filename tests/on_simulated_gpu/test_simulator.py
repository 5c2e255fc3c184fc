from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.on_simulated_gpu.launches import SimulatedGpu

INVALID_VALUE, OUT_OF_MEMORY, NOT_INITIALIZED, INVALID_CONTEXT = 1, 2, 3, 201
PEER_ACCESS_UNSUPPORTED, INVALID_HANDLE, NOT_READY, ALREADY_ENABLED = 217, 400, 600, 704
LAZY_PEER_ACCESS = 1
_LONGEST_EXIT_S = 30

# Exports 32 bytes of 7 and waits for a line before it ends.
EXPORTER = """
import ctypes, sys
driver = ctypes.CDLL(sys.argv[1])
context, address, handle = ctypes.c_void_p(), ctypes.c_uint64(), ctypes.create_string_buffer(64)
assert driver.cuInit(0) == 0
assert driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
assert driver.cuCtxPushCurrent_v2(context) == 0
assert driver.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(32)) == 0
ctypes.memset(address.value, 7, 32)
assert driver.cuIpcGetMemHandle(handle, address) == 0
print(handle.raw.hex(), flush=True)
sys.stdin.readline()
print(ctypes.string_at(address.value, 32).hex(), flush=True)
assert driver.cuMemFree_v2(address) == 0
"""


class IpcHandle(ctypes.Structure):
    _fields_ = (("bytes", ctypes.c_uint8 * 64),)


@pytest.fixture
def exporter(own_simulator: Path) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-I", "-c", EXPORTER, str(own_simulator)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield process
        process.kill()


def handle_of(exporter: subprocess.Popen[str]) -> IpcHandle:
    assert exporter.stdout is not None
    return IpcHandle.from_buffer_copy(bytes.fromhex(exporter.stdout.readline()))


def end(exporter: subprocess.Popen[str]) -> str:
    output, _ = exporter.communicate("go on\n", timeout=_LONGEST_EXIT_S)
    assert exporter.returncode == 0
    return output.strip()


def open_handle(gpu: SimulatedGpu, handle: IpcHandle) -> tuple[int, int]:
    address = ctypes.c_uint64()
    result = gpu.driver.cuIpcOpenMemHandle_v2(ctypes.byref(address), handle, LAZY_PEER_ACCESS)
    return result, address.value


def close_handle(gpu: SimulatedGpu, address: int) -> None:
    gpu.call("cuIpcCloseMemHandle", ctypes.c_uint64(address))


def test_two_processes_share_memory(gpu: SimulatedGpu, exporter: subprocess.Popen[str]) -> None:
    result, address = open_handle(gpu, handle_of(exporter))
    assert result == 0
    assert ctypes.string_at(address, 32) == bytes([7]) * 32
    ctypes.memset(address, 9, 32)
    assert end(exporter) == "09" * 32
    # The exporter has freed it and is gone.
    assert ctypes.string_at(address, 32) == bytes([9]) * 32
    close_handle(gpu, address)


def test_memory_is_mapped_once_however_often_it_is_opened(gpu: SimulatedGpu, exporter: subprocess.Popen[str]) -> None:
    handle = handle_of(exporter)
    first, second = open_handle(gpu, handle), open_handle(gpu, handle)
    assert first == second
    assert gpu.driver.sim_num_mappings() == 1
    close_handle(gpu, first[1])
    assert gpu.driver.sim_num_mappings() == 1
    close_handle(gpu, first[1])
    assert gpu.driver.sim_num_mappings() == 0


def test_freed_memory_cannot_be_opened(gpu: SimulatedGpu, exporter: subprocess.Popen[str]) -> None:
    handle = handle_of(exporter)
    end(exporter)
    assert open_handle(gpu, handle)[0] == INVALID_VALUE


def test_process_cannot_open_its_own_memory(gpu: SimulatedGpu) -> None:
    handle = IpcHandle()
    gpu.call("cuIpcGetMemHandle", ctypes.byref(handle), ctypes.c_uint64(gpu.allocate(32)))
    assert open_handle(gpu, handle)[0] == INVALID_CONTEXT


def test_sharing_fails_as_told(
    gpu: SimulatedGpu, exporter: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SIMULATED_NO_IPC", "1")
    assert open_handle(gpu, handle_of(exporter))[0] == INVALID_HANDLE
    address, value = ctypes.c_uint64(gpu.allocate(32)), ctypes.c_int(0)
    gpu.call("cuPointerGetAttribute", ctypes.byref(value), 13, address)
    assert value.value == 1
    monkeypatch.setenv("SIMULATED_NOT_EXPORTABLE", "1")
    gpu.call("cuPointerGetAttribute", ctypes.byref(value), 13, address)
    assert value.value == 0
    assert gpu.driver.cuIpcGetMemHandle(ctypes.byref(IpcHandle()), address) == INVALID_VALUE


def test_forked_process_cannot_use_the_driver(gpu: SimulatedGpu) -> None:
    pid = os.fork()
    if pid == 0:
        results = {gpu.driver.cuInit(0), gpu.driver.cuStreamSynchronize(None), gpu.driver.cuEventQuery(None)}
        os._exit(0 if results == {NOT_INITIALIZED} else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_memory_runs_out(gpu: SimulatedGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SIMULATED_GPU_BYTES", "1000")
    gpu.allocate(900)
    address = ctypes.c_uint64()
    assert gpu.driver.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(101)) == OUT_OF_MEMORY
    gpu.free_all()
    gpu.allocate(1000)


def test_allocations_have_numbers_of_their_own(gpu: SimulatedGpu) -> None:
    numbers = set()
    for _ in range(3):
        number = ctypes.c_uint64()
        gpu.call("cuPointerGetAttribute", ctypes.byref(number), 7, ctypes.c_uint64(gpu.allocate(16) + 8))
        numbers.add(number.value)
        gpu.free_all()
    assert len(numbers) == 3


def test_peers_are_devices_that_may_reach_each_other(gpu: SimulatedGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SIMULATED_GPUS", "2")
    peer, can = ctypes.c_void_p(), ctypes.c_int()
    gpu.call("cuDevicePrimaryCtxRetain", ctypes.byref(peer), 1)
    gpu.call("cuDeviceCanAccessPeer", ctypes.byref(can), 0, 1)
    assert can.value == 1
    gpu.call("cuCtxEnablePeerAccess", peer, 0)
    assert gpu.driver.cuCtxEnablePeerAccess(peer, 0) == ALREADY_ENABLED
    monkeypatch.setenv("SIMULATED_NO_PEER", "1")
    gpu.call("cuDeviceCanAccessPeer", ctypes.byref(can), 0, 1)
    assert can.value == 0
    assert gpu.driver.cuCtxEnablePeerAccess(peer, 0) == PEER_ACCESS_UNSUPPORTED


def new_stream(gpu: SimulatedGpu) -> ctypes.c_void_p:
    stream = ctypes.c_void_p()
    gpu.call("cuStreamCreateWithPriority", ctypes.byref(stream), 1, 0)
    return stream


def copy(gpu: SimulatedGpu, target: torch.Tensor, source: torch.Tensor, stream: ctypes.c_void_p) -> None:
    addresses = (ctypes.c_uint64(target.data_ptr()), ctypes.c_uint64(source.data_ptr()))
    gpu.call("cuMemcpyDtoDAsync_v2", *addresses, ctypes.c_size_t(source.nbytes), stream)


def test_work_is_done_at_the_call(gpu: SimulatedGpu) -> None:
    source, target, stream = gpu.tensor(torch.ones(8)), gpu.tensor(torch.zeros(8)), new_stream(gpu)
    copy(gpu, target, source, stream)
    assert torch.equal(target, source)
    gpu.call("cuStreamQuery", stream)


@pytest.mark.slow
def test_delayed_work_is_seen_only_by_those_who_wait(gpu: SimulatedGpu, monkeypatch: pytest.MonkeyPatch) -> None:
    source, middle, target = (gpu.tensor(torch.full((8,), value)) for value in (1.0, 0.0, 0.0))
    first, second, event = new_stream(gpu), new_stream(gpu), ctypes.c_void_p()
    gpu.call("cuEventCreate", ctypes.byref(event), 2)
    gpu.call("cuEventQuery", event)
    monkeypatch.setenv("SIMULATED_DELAY_US", "200000")
    copy(gpu, middle, source, first)
    gpu.call("cuEventRecord", event, first)
    monkeypatch.delenv("SIMULATED_DELAY_US")
    gpu.call("cuStreamWaitEvent", second, event, 0)
    assert gpu.driver.cuStreamQuery(first) == gpu.driver.cuEventQuery(event) == NOT_READY
    assert middle.sum() == target.sum() == 0
    copy(gpu, target, middle, second)
    gpu.call("cuStreamSynchronize", second)
    assert torch.equal(target, source)
    gpu.call("cuEventSynchronize", event)
    gpu.call("cuEventDestroy_v2", event)


def test_memory_of_nobody_is_refused(gpu: SimulatedGpu) -> None:
    stream, host = new_stream(gpu), ctypes.create_string_buffer(16)
    outside = ctypes.c_uint64(gpu.allocate(16) + 8)
    assert gpu.driver.cuMemcpyHtoDAsync_v2(outside, host, ctypes.c_size_t(16), stream) == INVALID_VALUE
    base, size = ctypes.c_uint64(), ctypes.c_size_t()
    assert (
        gpu.driver.cuMemGetAddressRange_v2(ctypes.byref(base), ctypes.byref(size), ctypes.c_uint64(8)) == INVALID_VALUE
    )


def test_compiler_tells_what_is_wrong(gpu: SimulatedGpu) -> None:
    with pytest.raises(AssertionError, match=r"kernels\.cu:\d+"):
        gpu.module("PHX_REDUCE", "PHX_TYPE=99", "PHX_OP=0")
