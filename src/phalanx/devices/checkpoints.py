"""Load checkpoints that were saved on devices that this process does not have."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

import torch
from torch.serialization import default_restore_location

from phalanx.errors import UsageError

Storage = torch.UntypedStorage
Missing = Literal["refuse", "wrap", "cpu"]

_EVERYWHERE = ("cpu", "meta")


def remap_devices(
    mapping: Mapping[str, str] | None = None, *, missing: Missing = "refuse"
) -> Callable[[Storage, str], Storage]:
    """Return a map_location for torch.load that says where tensors of missing devices go.

    torch.load("8-gpus.pt", map_location=remap_devices(missing="wrap"))

    Args:
        mapping: Where tensors of a device go, such as {"cuda:1": "cuda:0"}. It is applied first.
        missing: What happens to tensors of other devices that are not here. "refuse" raises an error that names the
            device. "wrap" lets the devices here take turns: of four, the second gets cuda:1, cuda:5 and cuda:9. They
            may also have another type. "cpu" puts the tensors on the CPU.

    Raises:
        UsageError: missing has another value. torch.load raises it if a device is not here.
    """
    if missing not in ("refuse", "wrap", "cpu"):
        raise UsageError(f"missing={missing!r} is unknown\n  do       take 'refuse', 'wrap' or 'cpu'")

    def restore(storage: Storage, location: str) -> Storage:
        target = (mapping or {}).get(location) or location
        if not _is_here(target):
            target = _instead_of(target, missing)
        placed: Storage = default_restore_location(storage, target)
        return placed

    return restore


def _is_here(location: str) -> bool:
    device_type, _, index = location.partition(":")
    if device_type in _EVERYWHERE:
        return True
    return device_type == _accelerator() and int(index or 0) < torch.accelerator.device_count()


def _instead_of(location: str, missing: Missing) -> str:
    num_devices = torch.accelerator.device_count()
    if missing == "cpu":
        return "cpu"
    if missing == "wrap" and num_devices > 0:
        index = int(location.partition(":")[2] or 0)
        return f"{_accelerator()}:{index % num_devices}"
    here = f"{_accelerator()}:0 to {_accelerator()}:{num_devices - 1}" if num_devices else "the CPU only"
    raise UsageError(
        f"the checkpoint has tensors of {location}, and this process has {here}\n"
        f"  do       say where they go: remap_devices({{'{location}': 'cpu'}}), or for all of them missing='wrap' (the "
        "devices here take turns) or missing='cpu'"
    )


def _accelerator() -> str:
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    return "" if accelerator is None else accelerator.type
