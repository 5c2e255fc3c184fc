"""Find the real GPUs of this machine without CUDA.

A process that has initialised CUDA can't be forked for ranks that use a GPU. NVIDIA's management library (NVML) counts
GPUs without that. Where it is missing, as in some containers, the device files are counted.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from phalanx.real_gpus.device_files import DEVICE_FOLDER, count_device_files
from phalanx.settings import VISIBLE_GPUS, copy_environment, hides_gpus

_NVML = "libnvidia-ml.so.1"
_UUID_BYTES = 96
_EXCLUSIVE_PROCESS = 3  # of NVML's compute modes
# Opened by cuInit and by nothing else: NVML does without. The second is WSL's.
_CUDA_FILES = ("/dev/nvidia-uvm", "/dev/dxg")


@dataclass(frozen=True)
class Gpu:
    """A GPU as its driver describes it.

    Attributes:
        uuid: Its unique name, "GPU-..."; empty if it is not known.
        memory_bytes: How much memory it has; 0 if that is not known.
        is_exclusive: Whether only one process at a time may use it (nvidia-smi -c EXCLUSIVE_PROCESS).
    """

    uuid: str = ""
    memory_bytes: int = 0
    is_exclusive: bool = False


class _Memory(ctypes.Structure):
    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


def find_gpus(nvml: str = _NVML, devices: Path = DEVICE_FOLDER) -> list[Gpu]:
    """Return all GPUs of this machine, visible to CUDA or not.

    Args:
        nvml: The management library.
        devices: Where the device files are.
    """
    with _opened(nvml) as library:
        if library is not None:
            return _ask(library)
    return [Gpu()] * count_device_files(devices)


def has_gpus() -> bool:
    """Return whether programs may see GPUs here.

    This does not even use NVML, which leaves a thread behind: ranks are forked from processes that call this.
    """
    return (count_device_files(DEVICE_FOLDER) > 0 or (DEVICE_FOLDER / "dxg").exists()) and not hides_gpus()


@contextlib.contextmanager
def _opened(nvml: str) -> Iterator[ctypes.CDLL | None]:
    try:
        library = ctypes.CDLL(nvml)
    except OSError:
        yield None
        return
    if library.nvmlInit_v2() != 0:
        yield None
        return
    try:
        yield library
    finally:
        library.nvmlShutdown()  # a forked process could not use it


def _ask(library: ctypes.CDLL) -> list[Gpu]:
    count = ctypes.c_uint()
    if library.nvmlDeviceGetCount_v2(ctypes.byref(count)) != 0:
        return []
    return [_describe(library, number) for number in range(count.value)]


def _describe(library: ctypes.CDLL, number: int) -> Gpu:
    handle, uuid = ctypes.c_void_p(), ctypes.create_string_buffer(_UUID_BYTES)
    memory, mode = _Memory(), ctypes.c_int()
    if library.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(number), ctypes.byref(handle)) != 0:
        return Gpu()
    has_uuid = library.nvmlDeviceGetUUID(handle, uuid, ctypes.c_uint(_UUID_BYTES)) == 0
    has_memory = library.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory)) == 0
    has_mode = library.nvmlDeviceGetComputeMode(handle, ctypes.byref(mode)) == 0
    return Gpu(
        uuid.value.decode() if has_uuid else "",
        memory.total if has_memory else 0,
        has_mode and mode.value == _EXCLUSIVE_PROCESS,
    )


def visible_gpus(found: Sequence[Gpu], environment: Mapping[str, str] | None = None) -> list[str]:
    """Return the GPUs that CUDA shows, as CUDA_VISIBLE_DEVICES would name them, in CUDA's order.

    CUDA ignores the first entry of that variable that names no GPU, and all behind it. It shows none if two entries
    name the same GPU.

    Args:
        found: All GPUs of the machine.
        environment: The variables that say which are visible; this process's own if not given.
    """
    text = (copy_environment() if environment is None else environment).get(VISIBLE_GPUS)
    if text is None:
        return [str(number) for number in range(len(found))]
    names: list[str] = []
    for name in (part.strip() for part in text.split(",")):
        if not is_there(name, found):
            break
        names.append(name)
    return [] if names_one_twice(names, found) else names


def is_there(name: str, found: Sequence[Gpu]) -> bool:
    """Return whether an entry of CUDA_VISIBLE_DEVICES names a GPU: by its number, or the beginning of its UUID."""
    if name.isascii() and name.isdigit():
        return int(name) < len(found)
    if name.startswith("MIG-"):  # a part of a GPU, which is not counted here
        return bool(found)
    if not name.startswith("GPU-"):
        return False
    return len(fitting(name, found)) == 1 or any(not gpu.uuid for gpu in found)


def fitting(name: str, found: Sequence[Gpu]) -> list[int]:
    """Return the numbers of the GPUs whose UUIDs begin with a name. CUDA accepts a beginning that fits only one GPU."""
    return [number for number, gpu in enumerate(found) if gpu.uuid and gpu.uuid.startswith(name)]


def names_one_twice(names: Sequence[str], found: Sequence[Gpu]) -> bool:
    """Return whether two entries of CUDA_VISIBLE_DEVICES name the same GPU, by its UUID or its number."""
    # A number is NVML's here; CUDA's is another one only where GPUs are not alike.
    numbers = [str(fits[0]) if len(fits := fitting(name, found)) == 1 else name for name in names]
    return len(set(numbers)) < len(numbers)


def memory_of(name: str, found: Sequence[Gpu]) -> int:
    """Return the memory of a GPU that CUDA_VISIBLE_DEVICES names; 0 if NVML can't say which GPU that is."""
    sizes = {gpu.memory_bytes for gpu in _meant(name, found)}
    return sizes.pop() if len(sizes) == 1 and not name.startswith("MIG-") else 0


def is_exclusive(name: str, found: Sequence[Gpu]) -> bool:
    """Return whether a GPU that CUDA_VISIBLE_DEVICES names takes only one process at a time, as far as NVML can say."""
    meant = _meant(name, found)
    return bool(meant) and all(gpu.is_exclusive for gpu in meant)


def _meant(name: str, found: Sequence[Gpu]) -> list[Gpu]:
    """Return the GPUs that a name may stand for."""
    if name.startswith("GPU-"):
        return [found[number] for number in fitting(name, found)]
    # CUDA numbers the fastest GPU first, NVML by the bus, so a number may stand for any GPU.
    return list(found)


def has_opened_cuda(files: Path = Path("/proc/self/fd")) -> bool:
    """Return whether this process has initialised CUDA's driver: then its forks can't use CUDA.

    torch.cuda.is_available() initialises it.

    Args:
        files: The open files of this process.
    """
    for file in files.iterdir():
        with contextlib.suppress(OSError):
            if str(file.readlink()) in _CUDA_FILES:
                return True
    return False
