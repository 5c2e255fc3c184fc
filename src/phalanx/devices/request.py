"""What `phalanx.virtual_devices(...)` is asked for, checked before anything happens."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal, get_args

from phalanx import settings
from phalanx.errors import UsageError
from phalanx.settings import MAX_VIRTUAL_DEVICES, RACES, Races

Face = Literal["virtual", "cuda"]
FACES: tuple[Face, ...] = get_args(Face)

_SMALLEST_BYTES = 1 << 20
_LARGEST_BYTES = 1 << 50
_UNITS = {"b": 1, **{f"{letter}b": 1000**power for power, letter in enumerate("kmgt", start=1)}}
_UNITS |= {f"{letter}ib": 1024**power for power, letter in enumerate("kmgt", start=1)}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]+)", re.IGNORECASE)


@dataclass(frozen=True)
class Setup:
    """The virtual devices of a process.

    Attributes:
        num_devices: How many.
        face: The device type they have in torch.
        memory_bytes: How much memory each has.
        races: What happens when two streams touch the same memory unordered.
    """

    num_devices: int
    face: Face
    memory_bytes: int
    races: Races

    def __str__(self) -> str:
        memory = f"{self.memory_bytes / 2**30:g} GiB"
        return f'{self.num_devices} with face "{self.face}", {memory} each, races "{self.races}"'


def read_request(num_devices: Any, face: Any, memory: Any, races: Any) -> Setup:
    """Check the arguments of virtual_devices(); None is what the environment says.

    Raises:
        UsageError: One of them is not possible.
    """
    if isinstance(num_devices, bool) or not isinstance(num_devices, int):
        raise UsageError(f"virtual_devices: num_devices is {num_devices!r}; give a whole number, such as 8")
    if not 1 <= num_devices <= MAX_VIRTUAL_DEVICES:
        raise UsageError(f"virtual_devices: num_devices is {num_devices}; give one from 1 to {MAX_VIRTUAL_DEVICES}")
    if face not in FACES:
        raise UsageError(
            f'virtual_devices: face is {face!r}; give "virtual" for devices of their own type, '
            'or "cuda" for code that is written for torch.cuda'
        )
    races = settings.races() if races is None else races
    if races not in RACES:
        raise UsageError(f"virtual_devices: races is {races!r}; give one of {', '.join(RACES)}")
    return Setup(num_devices, face, _read_memory(memory), races)


def _read_memory(memory: Any) -> int:
    if memory is None:
        return size_in_bytes(settings.virtual_memory(), "PHALANX_VIRTUAL_MEMORY")
    return size_in_bytes(memory, "virtual_devices: memory")


def size_in_bytes(size: Any, name: str) -> int:
    """Turn a size such as "16GiB", "512MB" or a number of bytes into bytes.

    Args:
        size: The size.
        name: What the user calls it.

    Raises:
        UsageError: It is none.
    """
    size_bytes = -1
    if isinstance(size, int) and not isinstance(size, bool):
        size_bytes = size
    elif isinstance(size, str):
        match = _SIZE.fullmatch(size.strip())
        if match and match[2].lower() in _UNITS:
            size_bytes = int(float(match[1]) * _UNITS[match[2].lower()])
    if size_bytes < 0:
        raise UsageError(f'{name} is {size!r}; give a size with its unit, such as "16GiB" or "512MB", or bytes')
    if not _SMALLEST_BYTES <= size_bytes <= _LARGEST_BYTES:
        raise UsageError(f'{name} is {size!r}; give a size from "1MiB" to "1024TiB"')
    return size_bytes
