"""Virtual GPUs of ranks that run tests: the text that asks for them, and their set-up on a rank."""

from __future__ import annotations

import re
from typing import Any

from phalanx.errors import UsageError
from phalanx.gpu_models import find_gpu_model
from phalanx.launch.rank_devices import RankGpus, devices_of_this_process
from phalanx.settings import MAX_VIRTUAL_DEVICES, RACES, Races, set_environment

_SPEC = re.compile(r"virtual(?::([0-9]{1,6}))?(?::([a-z][a-z0-9-]*))?", re.IGNORECASE)


def read_gpu_spec(spec: Any, races: Any, num_ranks: int, caller: str) -> RankGpus:
    """Read what gpus= and races= ask for.

    Args:
        spec: Such as "virtual", "virtual:4", "virtual:h100" or "virtual:4:h100".
        races: A mode of the race detector, or None.
        num_ranks: The number of devices if the text has none.
        caller: Who is asked.

    Raises:
        UsageError: They make no sense.
    """
    found = _SPEC.fullmatch(spec) if isinstance(spec, str) else None
    if found is None:
        raise UsageError(
            f'{caller}: gpus is {spec!r}; give "virtual" for as many as ranks, "virtual:4" for another number, or '
            '"virtual:4:h100" to say what they claim to be'
        )
    num_devices = num_ranks if found[1] is None else int(found[1])
    if not 1 <= num_devices <= MAX_VIRTUAL_DEVICES:
        raise UsageError(
            f"{caller}: {num_devices} virtual GPUs are not possible; give 1 to {MAX_VIRTUAL_DEVICES}, such as "
            f'gpus="virtual:{MAX_VIRTUAL_DEVICES}"'
        )
    model = None if found[2] is None else find_gpu_model(found[2], f"{caller}: the model in gpus=").key
    return RankGpus(num_devices, model, read_races(races, caller))


def read_races(given: Any, caller: str) -> Races | None:
    """Check a mode of the race detector; None stands for the value of PHALANX_RACES.

    Raises:
        UsageError: There is no such mode.
    """
    for choice in RACES:
        if given == choice:
            return choice
    if given is not None:
        raise UsageError(f"{caller}: races is {given!r}; give one of {', '.join(RACES)}")
    return None


def set_up_gpus(gpus: RankGpus) -> None:
    """On a rank: set up the virtual GPUs, with phalanx in NCCL's place. On a warm rank, reset them.

    Raises:
        UsageError: This process can't have them.
    """
    set_environment(**gpus.variables())  # for processes that the rank starts, too
    # These import torch: a session without ranks does without.
    from phalanx.stand_in import stand_in_for
    from phalanx.virtual_gpus.set_up import active, virtual_devices

    was_there = active() is not None
    virtual_devices(gpus.num_devices, face="cuda", gpu=gpus.model, races=gpus.races)  # type: ignore[arg-type]
    if was_there:
        reset_gpus()
    else:
        stand_in_for("nccl")  # until the process ends


def reset_gpus() -> None:
    """On a warm rank: give the next test CUDA devices as in a fresh process, if this one has virtual ones."""
    there = devices_of_this_process()
    if there is None or there.face != "cuda":
        return
    import torch

    for index in range(there.num_devices):
        torch.cuda.set_stream(torch.cuda.default_stream(index))
        torch.cuda.reset_peak_memory_stats(index)
    torch.cuda.set_device(0)
