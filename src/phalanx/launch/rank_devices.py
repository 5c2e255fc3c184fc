"""The virtual GPUs of ranks: what their launcher asks for, and how a rank that was just forked sets them up.

Ranks are forked from a process that has none, because a process can't get rid of them, and the next ranks may want
others. So each rank sets up its own, as `import torch` does in a process that was started with the same variables.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from phalanx import settings
from phalanx.errors import UsageError
from phalanx.gpu_models import find_gpu_model

# This package is below the two that set up devices, and only ranks with devices need them, so they go by name.
_SET_UP = "phalanx.virtual_gpus.set_up"
_AUTOLOAD = "phalanx.autoload"
PRELOADED = (_AUTOLOAD, _SET_UP, "phalanx.virtual_gpus.torch_cuda", "phalanx.stand_in.install")
"""What ranks with virtual GPUs import. The process that they are forked from may import it, which sets up nothing."""


@dataclass(frozen=True)
class RankGpus:
    """The virtual GPUs that every rank sees.

    Attributes:
        num_devices: How many; 0 for none.
        model: What they claim to be; None for the value of PHALANX_VIRTUAL_GPU.
        races: What happens when there is a race; None for the value of PHALANX_RACES.
    """

    num_devices: int
    model: str | None = None
    races: str | None = None

    def variables(self) -> dict[str, str]:
        """Return the variables by which `import torch` sets them up. Real GPUs are hidden."""
        if not self.num_devices:
            return {settings.VIRTUAL_GPUS: "0"}
        chosen = {settings.VIRTUAL_GPU: self.model, settings.RACES_MODE: self.races}
        given = {name: value for name, value in chosen.items() if value is not None}
        return {settings.VIRTUAL_GPUS: str(self.num_devices), settings.VISIBLE_GPUS: "", **given}


def read_rank_gpus(num_devices: Any, model: Any, caller: str) -> RankGpus | None:
    """Check the arguments `virtual_gpus` and `virtual_gpu` of a launcher; None means what the caller's process has.

    Raises:
        UsageError: They make no sense.
    """
    if num_devices is None:
        if model is not None:
            raise UsageError(f"{caller}: virtual_gpu is for virtual GPUs; say how many, such as virtual_gpus=4")
        return None
    is_number = isinstance(num_devices, int) and not isinstance(num_devices, bool)
    if not is_number or not 0 <= num_devices <= settings.MAX_VIRTUAL_DEVICES:
        raise UsageError(
            f"{caller}: virtual_gpus is {num_devices!r}; give a whole number from 1 to {settings.MAX_VIRTUAL_DEVICES}, "
            "or 0 for none"
        )
    return RankGpus(num_devices, None if model is None else find_gpu_model(model, f"{caller}: virtual_gpu").key)


def devices_of_this_process() -> Any:
    """Return the virtual devices that this process has set up, as a `Setup`; None if it has none."""
    module: Any = sys.modules.get(_SET_UP)
    return None if module is None else module.active()


def check_threads(gpus: RankGpus | None, caller: str) -> None:
    """Make sure that ranks which are threads of this process have the virtual GPUs that are asked for.

    Raises:
        UsageError: This process has none, or others.
    """
    if gpus is None:
        return
    there = devices_of_this_process()
    if not _is_like(there, gpus):
        raise UsageError(
            f'{caller}: ranks of kind "thread" share the virtual devices of this process: {there or "none"}\n'
            f'  do       use kind="process", or {_advice_for_threads(there, gpus, caller)}'
        )


def _advice_for_threads(there: Any, gpus: RankGpus, caller: str) -> str:
    if there is None or there.face != "cuda":
        return 'let this process call phalanx.virtual_devices(), with face="cuda", first'
    number, is_model = there.num_devices, gpus.model in (None, there.gpu)
    if caller == "spawn":
        asking = f"virtual_gpus={number}" + ("" if is_model else f', virtual_gpu="{there.gpu}"')
    else:
        asking = f'gpus="virtual:{number}' + ('"' if is_model else f':{there.gpu}"')
    if gpus.races not in (None, there.races):
        asking += f', races="{there.races}"'
    return f"ask for {number}: {asking}"


def _is_like(there: Any, gpus: RankGpus) -> bool:
    if there is None or not gpus.num_devices:
        return there is None and not gpus.num_devices
    return (
        (there.face, there.num_devices) == ("cuda", gpus.num_devices)
        and gpus.model in (None, there.gpu)
        and gpus.races in (None, there.races)
    )


def rank_environment(gpus: RankGpus | None) -> dict[str, str]:
    """Return the variables of this process, changed so that ranks get these virtual GPUs.

    Args:
        gpus: What is asked for; None for the CUDA devices that this process has set up.
    """
    there = devices_of_this_process()
    if gpus is not None:
        return settings.copy_environment(**gpus.variables())
    if there is None or there.face != "cuda":
        return settings.copy_environment()
    inherited = RankGpus(there.num_devices, there.gpu, there.races)
    return settings.copy_environment(**inherited.variables(), **{settings.VIRTUAL_MEMORY: f"{there.memory_bytes}B"})


def inherited_devices(gpus: RankGpus | None) -> dict[str, Any]:
    """Return the arguments of virtual_devices() for ranks of a process with devices of their own type, or nothing."""
    there = devices_of_this_process()
    if gpus is not None or there is None or there.face != "virtual":
        return {}
    return {
        "num_devices": there.num_devices,
        "face": there.face,
        "memory": there.memory_bytes,
        "races": there.races,
    }


def set_up_devices(own_type: Mapping[str, Any]) -> None:
    """In a rank: set up what its variables ask of `import torch`, which ran before the rank had them.

    Args:
        own_type: The arguments of virtual_devices() for devices of their own type.

    Raises:
        PhalanxError: The rank can't have them.
    """
    if settings.wants_set_up():
        importlib.import_module(_AUTOLOAD).set_up_rank()
    if own_type:
        importlib.import_module(_SET_UP).virtual_devices(**own_type)
