"""Find the virtual device that a caller means."""

from __future__ import annotations

from typing import Any

import torch

DEVICE_TYPE = "virtual"

AnyDevice = torch.device | str | int | None


class Indices:
    """Turns devices, their names and numbers into indices, and refuses devices that do not exist."""

    def __init__(self, num_devices: int) -> None:
        self._num_devices = num_devices

    def of(self, device: AnyDevice) -> int:
        """Return the index of a device; of the current one for None, "virtual" and negative numbers.

        Raises:
            ValueError: It is a device of another type.
            RuntimeError: There are not so many virtual devices.
        """
        index = index_named(device)
        if index >= self._num_devices:
            raise RuntimeError(
                f"invalid device ordinal: there is no {DEVICE_TYPE}:{index}, only {DEVICE_TYPE}:0 to "
                f"{DEVICE_TYPE}:{self._num_devices - 1}\n"
                f"  do       set up more: phalanx.virtual_devices({index + 1}) at the start of the program"
            )
        return index


def index_named(device: AnyDevice, optional: bool = True, allow_cpu: bool = False) -> int:
    """Return the index without a check that the device exists: torch.load and the native part raise their own errors.

    Raises:
        ValueError: It is a device of another type, or has no index though it needs one.
    """
    if isinstance(device, int) and device >= 0:
        return device
    if isinstance(device, torch.device | str):
        named = torch.device(device)
        if allow_cpu and named.type == "cpu":
            return -1
        if named.type != DEVICE_TYPE:
            raise ValueError(f"Expected a {DEVICE_TYPE} device, but got: {named}")
        if named.index is not None:
            return named.index
    if not optional:
        raise ValueError(f"Expected a torch.device with a specified index or an integer, but got:{device}")
    return current_index()


def current_index() -> int:
    """Return the index of the device that is current in this thread."""
    index: Any = torch.accelerator.current_device_index()
    return int(index)
