"""The current device, and the properties of devices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import torch

from phalanx.virtual_gpus.stream_order import raise_failure
from phalanx.virtual_gpus.torch_virtual.indices import DEVICE_TYPE, AnyDevice, Indices, current_index, index_named


@dataclass(frozen=True)
class VirtualDeviceProperties:
    """The result of torch.virtual.get_device_properties; the names are those of CUDA's properties."""

    name: str
    total_memory: int
    major: int = 0
    minor: int = 0
    multi_processor_count: int = 1
    is_virtual: bool = True


class device:  # torch's spelling
    """Makes a device current inside a block, and restores the previous one at the end."""

    def __init__(self, device: AnyDevice) -> None:
        # A negative number, None and "virtual" change nothing.
        self.idx = index_named(device)
        self._before: list[int] = []

    def __enter__(self) -> None:
        self._before.append(current_index())
        torch.accelerator.set_device_index(self.idx)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        torch.accelerator.set_device_index(self._before.pop())


class device_of(device):  # torch's spelling
    """Makes the device of a tensor or storage current; does nothing if it is not on a virtual device."""

    def __init__(self, obj: Any) -> None:
        super().__init__(obj.device if obj.device.type == DEVICE_TYPE else None)


class Selection:
    """The device functions of torch.virtual."""

    def __init__(self, indices: Indices, num_devices: int, memory_bytes: int) -> None:
        self._indices = indices
        self._num_devices = num_devices
        self._memory_bytes = memory_bytes

    def device_count(self) -> int:
        """Return how many virtual devices there are."""
        return self._num_devices

    def is_available(self) -> bool:
        """Return True: the module exists only after devices are set up."""
        return True

    def is_initialized(self) -> bool:
        """Return True: set-up is complete."""
        return True

    def init(self) -> None:
        """Do nothing: set-up is complete."""

    def is_in_bad_fork(self) -> bool:
        """Return False: the devices are ordinary memory, which a forked process has too."""
        return False

    def current_device(self) -> int:
        """Return the index of the device that is current in this thread."""
        return current_index()

    def set_device(self, device: AnyDevice) -> None:
        """Make a device current in this thread."""
        torch.accelerator.set_device_index(self._indices.of(device))

    def exchange_device(self, index: int) -> int:
        """Make a device current and return the index of the previous one; a negative index changes nothing."""
        before = current_index() if index >= 0 else -1
        if index >= 0:
            self.set_device(index)
        return before

    def synchronize(self, device: AnyDevice = None) -> None:
        """Wait until all work of a device is done.

        Raises:
            PhalanxError: A collective on it has failed.
        """
        torch.accelerator.synchronize(self._indices.of(device))
        raise_failure("virtual")

    def get_device_properties(self, device: AnyDevice = None) -> VirtualDeviceProperties:
        """Return name and size of a device."""
        return VirtualDeviceProperties(self.get_device_name(device), self._memory_bytes)

    def get_device_name(self, device: AnyDevice = None) -> str:
        """Return the name of a device."""
        self._indices.of(device)
        return "Virtual GPU"

    def get_device_capability(self, device: AnyDevice = None) -> tuple[int, int]:
        """Return (0, 0): no kernels are compiled for a virtual device."""
        properties = self.get_device_properties(device)
        return properties.major, properties.minor

    def can_device_access_peer(self, device: AnyDevice, peer_device: AnyDevice) -> bool:
        """Return whether two devices are different: each can read the memory of all others."""
        return self._indices.of(device) != self._indices.of(peer_device)

    def is_bf16_supported(self, including_emulation: bool = True) -> bool:
        """Return True: bfloat16 works as on the CPU."""
        return True

    def get_amp_supported_dtype(self) -> Sequence[torch.dtype]:
        """Return the types torch.autocast may use."""
        return [torch.float16, torch.bfloat16]

    def ipc_collect(self) -> None:
        """Do nothing: the memory of a virtual device is never shared with another process."""
