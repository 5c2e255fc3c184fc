"""GPU memory handed over from one process to another by CUDA's driver alone, as phalanx's engine does it; no torch."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

DRIVER = "libcuda.so.1"
_HANDLE_BYTES = 64
_VALUE = 0x7068616C616E78  # what the other process must find
_WORD = 8
_LAZY_PEER_ACCESS = 1
_DEVICE_UNAVAILABLE = 46  # what a second process gets of a GPU for one
_RECEIVER_S = 20.0
_RECEIVER = """
import sys
from phalanx.doctor.asking import die_with_parent
from phalanx.doctor.cuda_ipc import receive
die_with_parent(int(sys.argv[1]))
receive(sys.argv[2], bytes.fromhex(sys.argv[3]))
"""


class NoCudaDevice(Exception):
    """There is no driver, or no GPU for it."""


class HandOverRefused(Exception):
    """The driver does not let processes share memory of a GPU; the text says what it said."""


class OneProcessOnly(HandOverRefused):
    """The GPU takes one process at a time (compute mode EXCLUSIVE_PROCESS), and there is one."""


class _Handle(ctypes.Structure):
    _fields_ = (("reserved", ctypes.c_char * _HANDLE_BYTES),)


def hand_over(driver_name: str) -> None:
    """Have another process read memory of the first GPU.

    Args:
        driver_name: The driver's library.

    Raises:
        NoCudaDevice: There is none.
        OneProcessOnly: There can be no other process.
        HandOverRefused: It did not get there.
    """
    with _context(driver_name) as driver:
        memory, handle = ctypes.c_uint64(), _Handle()
        value = ctypes.c_uint64(_VALUE)
        _check(driver, driver.cuMemAlloc_v2(ctypes.byref(memory), ctypes.c_size_t(_WORD)))
        try:
            _check(driver, driver.cuMemcpyHtoDAsync_v2(memory, ctypes.byref(value), ctypes.c_size_t(_WORD), None))
            _check(driver, driver.cuStreamSynchronize(None))
            _check(driver, driver.cuIpcGetMemHandle(ctypes.byref(handle), memory))
            _have_received(driver_name, bytes(memoryview(handle)).hex())
        finally:
            driver.cuMemFree_v2(memory)


def _have_received(driver_name: str, handle: str) -> None:
    command = [sys.executable, "-c", _RECEIVER, str(os.getpid()), driver_name, handle]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_RECEIVER_S, check=False)
    except subprocess.TimeoutExpired:
        raise HandOverRefused(f"the other process did not have it after {_RECEIVER_S:.0f} s") from None
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or [f"the other process ended with {done.returncode}"]
        if OneProcessOnly.__name__ in lines[-1]:
            raise OneProcessOnly("another process has it")
        raise HandOverRefused(lines[-1].rpartition("HandOverRefused: ")[2])


def receive(driver_name: str, handle: bytes) -> None:
    """Be the other process: read what was handed over.

    Raises:
        OneProcessOnly: This process may not use the GPU beside the other.
        HandOverRefused: It is not there.
        NoCudaDevice: This process sees no GPU.
    """
    with _context(driver_name) as driver:
        memory, value = ctypes.c_uint64(), ctypes.c_uint64()
        opened = driver.cuIpcOpenMemHandle_v2(
            ctypes.byref(memory), _Handle.from_buffer_copy(handle), ctypes.c_uint(_LAZY_PEER_ACCESS)
        )
        _check(driver, opened)
        _check(driver, driver.cuMemcpyDtoHAsync_v2(ctypes.byref(value), memory, ctypes.c_size_t(_WORD), None))
        _check(driver, driver.cuStreamSynchronize(None))
        _check(driver, driver.cuIpcCloseMemHandle(memory))
        if value.value != _VALUE:
            raise HandOverRefused("the other process read other values")


@contextmanager
def _context(driver_name: str) -> Iterator[ctypes.CDLL]:
    try:
        driver = ctypes.CDLL(driver_name)
    except OSError:
        raise NoCudaDevice("no CUDA driver") from None
    count, context = ctypes.c_int(), ctypes.c_void_p()
    if driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0 or count.value == 0:
        raise NoCudaDevice("no CUDA device")
    retained = driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0)
    if retained == _DEVICE_UNAVAILABLE:
        raise OneProcessOnly("another process has it")
    _check(driver, retained)
    _check(driver, driver.cuCtxPushCurrent_v2(context))
    yield driver


def _check(driver: ctypes.CDLL, code: int) -> None:
    if code != 0:
        name = ctypes.c_char_p()
        driver.cuGetErrorName(code, ctypes.byref(name))
        raise HandOverRefused((name.value or f"error {code}".encode()).decode())
