"""The device files of real GPUs: how many there are."""

from __future__ import annotations

import re
from pathlib import Path

_DEVICE_FILE = re.compile(r"nvidia[0-9]+")
DEVICE_FOLDER = Path("/dev")


def count_device_files(devices: Path = DEVICE_FOLDER) -> int:
    """Count the GPUs that this machine, or container, has device files for."""
    return sum(1 for file in devices.glob("nvidia*") if _DEVICE_FILE.fullmatch(file.name))
