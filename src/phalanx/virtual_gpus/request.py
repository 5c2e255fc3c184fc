"""Read and check the arguments of `phalanx.virtual_devices(...)`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

from phalanx import settings
from phalanx.byte_sizes import size_in_bytes
from phalanx.errors import UsageError
from phalanx.gpu_models import PLAIN, GpuModel, find_gpu_model
from phalanx.settings import MAX_VIRTUAL_DEVICES, RACES, Races

Face = Literal["virtual", "cuda"]
FACES: tuple[Face, ...] = get_args(Face)


@dataclass(frozen=True)
class Setup:
    """The virtual devices of a process.

    Attributes:
        num_devices: How many devices there are.
        face: Their device type in torch.
        memory_bytes: How much memory each device has.
        races: What happens when two streams access the same memory and neither waits for the other.
        gpu: What the devices claim to be, as users name it.
    """

    num_devices: int
    face: Face
    memory_bytes: int
    races: Races
    gpu: str = PLAIN

    def __str__(self) -> str:
        memory = f"{self.memory_bytes / 2**30:g} GiB"
        return f'{self.num_devices} with face "{self.face}", gpu "{self.gpu}", {memory} each, races "{self.races}"'


def read_request(num_devices: Any, face: Any, gpu: Any, memory: Any, races: Any) -> Setup:
    """Check the arguments of virtual_devices(); None stands for the value in the environment.

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
    model = _read_gpu(gpu, face)
    return Setup(num_devices, face, _read_memory(memory, model), races, model.key)


def _read_gpu(gpu: Any, face: Face) -> GpuModel:
    if face == "virtual":
        if gpu is not None:
            raise UsageError(
                f'virtual_devices: gpu is {gpu!r}, but only devices with face="cuda" can claim to be a GPU; '
                'add face="cuda"'
            )
        return find_gpu_model(PLAIN, "gpu")
    return settings.virtual_gpu() if gpu is None else find_gpu_model(gpu, "virtual_devices: gpu")


def _read_memory(memory: Any, model: GpuModel) -> int:
    if memory is None:
        return size_in_bytes(settings.virtual_memory(model), "PHALANX_VIRTUAL_MEMORY")
    return size_in_bytes(memory, "virtual_devices: memory")
