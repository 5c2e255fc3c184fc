"""Give this process virtual devices, until it ends: torch can't remove a device type.

This happens on request, never on import. Everything that can be refused is refused before torch is changed.
"""

from __future__ import annotations

import atexit
import threading
from typing import TYPE_CHECKING, Literal

import torch

from phalanx.devices import races as race_detector
from phalanx.engine import admit_device_type
from phalanx.errors import UsageError
from phalanx.settings import cuda_driver
from phalanx.virtual_gpus import library as native
from phalanx.virtual_gpus import stream_order
from phalanx.virtual_gpus.building import built_library
from phalanx.virtual_gpus.refusals import check_again, check_process
from phalanx.virtual_gpus.request import Setup, read_request

if TYPE_CHECKING:
    from phalanx.virtual_gpus.library import Library

__all__ = ["Setup", "active", "virtual_devices"]

_DLPACK_TYPES = {"cuda": 2, "virtual": 12}


class _Process:
    """The devices of this process. A forked child inherits them. The lock guards the set-up as a whole."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.setup: Setup | None = None
        self.failure: BaseException | None = None


_process = _Process()


def virtual_devices(
    num_devices: int,
    *,
    face: Literal["virtual", "cuda"] = "virtual",
    gpu: str | None = None,
    memory: str | int | None = None,
    races: Literal["off", "warn", "raise"] | None = None,
) -> tuple[torch.device, ...]:
    """Set up virtual devices in this process and return them. Asking again for the same returns them again.

    They compute on the CPU and have memory, streams, events and random numbers of their own, as GPUs have. The first
    use builds a library with the C++ compiler of this machine and keeps it for this version of torch.

    Args:
        num_devices: How many, from 1 to 64.
        face: "virtual" gives them a device type of their own ("virtual:0", torch.virtual). "cuda" lets unmodified code
            for torch.cuda run on them ("cuda:0"); it is experimental, and refused where real GPUs are visible.
        gpu: What CUDA devices claim to be, such as "h100": it decides their name, compute capability, multiprocessors
            and memory. The default is PHALANX_VIRTUAL_GPU, or else "plain", a device of capability 8.0.
        memory: How much memory each has, such as "16GiB" or a number of bytes. The default is PHALANX_VIRTUAL_MEMORY,
            or else that of `gpu`, which is 16 GiB for "plain". Only tensors take memory from the machine.
        races: What to do when two streams access the same memory and neither waits for the other: "off" for nothing,
            "warn", or "raise" a RaceError. The default is PHALANX_RACES, or else "off".

    Returns:
        The devices, in the order of their numbers.

    Raises:
        UsageError: An argument is not possible, or this process can't have (other) virtual devices.
        BuildError: The library can't be built on this machine.
    """
    wanted = read_request(num_devices, face, gpu, memory, races)
    with _process.lock:
        if _process.setup is not None:
            check_again(wanted, _process.setup)
        else:
            _set_up_once(wanted)
    return tuple(torch.device(face, index) for index in range(num_devices))


def active() -> Setup | None:
    """Return the virtual devices of this process; None when there are none."""
    return _process.setup


def _set_up_once(wanted: Setup) -> None:
    if _process.failure is not None:
        raise UsageError(
            f"virtual devices can't be set up any more: the first attempt failed half-way ({_process.failure})\n"
            "  do       start another process"
        ) from _process.failure
    check_process(wanted.face)
    path = built_library()
    try:
        _install(native.load(path), wanted)
    except BaseException as error:
        _process.failure = error
        raise
    _process.setup = wanted


def _install(library: Library, setup: Setup) -> None:
    library.set_up(setup.face == "cuda", setup.num_devices, setup.memory_bytes)
    driver = cuda_driver() if setup.face == "cuda" else None
    if driver is not None:
        library.use_driver(driver)
    # torch's threads for backward need the GIL to release their objects, and can't get it while the interpreter ends.
    atexit.register(library.settle_autograd_threads)
    _install_face(library, setup)
    admit_device_type(_DLPACK_TYPES[setup.face], driver is not None)
    stream_order.register(library, setup.face)
    race_detector.connect(library.native)
    race_detector.set_mode(setup.races)


def _install_face(library: Library, setup: Setup) -> None:
    if setup.face == "cuda":
        # A program uses one face. To import the other one as well would take 20 to 30 ms.
        from phalanx.virtual_gpus.torch_cuda import install
    else:
        # As above.
        from phalanx.virtual_gpus.torch_virtual import install
    install(library, setup)
