"""Virtual GPUs of a test: a marker or a fixture asks for them, and only its ranks set them up, not pytest's process."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import pytest

from phalanx.errors import BuildError, UsageError
from phalanx.settings import MAX_VIRTUAL_DEVICES, RACES, Races, set_environment

DEFAULT_NUM_GPUS = 4
_SPEC = re.compile(r"virtual(?::([0-9]{1,6}))?")


@dataclass(frozen=True)
class VirtualGpus:
    """The virtual GPUs that every rank of a test sees.

    Attributes:
        num_devices: How many.
        races: What happens when there is a race; None for the value of PHALANX_RACES.
    """

    num_devices: int
    races: Races | None = None


def read_gpus(options: Mapping[str, Any], num_ranks: int) -> VirtualGpus | None:
    """Read `gpus` and `races` of @pytest.mark.ranks.

    Raises:
        UsageError: They make no sense.
    """
    spec, marker = options.get("gpus"), "@pytest.mark.ranks"
    if spec is None:
        if "races" in options:
            raise UsageError(f'{marker}: races is for virtual GPUs; add gpus="virtual"')
        return None
    found = _SPEC.fullmatch(spec) if isinstance(spec, str) else None
    if found is None:
        raise UsageError(
            f'{marker}: gpus is {spec!r}; give "virtual" for as many as ranks, or "virtual:4" for another number'
        )
    num_devices = num_ranks if found[1] is None else int(found[1])
    if not 1 <= num_devices <= MAX_VIRTUAL_DEVICES:
        raise UsageError(
            f"{marker}: {num_devices} virtual GPUs are not possible; give 1 to {MAX_VIRTUAL_DEVICES}, such as "
            f'gpus="virtual:{MAX_VIRTUAL_DEVICES}"'
        )
    return VirtualGpus(num_devices, _read_races(options, marker))


def read_own_marker(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> VirtualGpus:
    """Read @pytest.mark.virtual_gpus(4), which makes a test of one process with several GPUs.

    Raises:
        UsageError: It makes no sense.
    """
    marker = "@pytest.mark.virtual_gpus"
    unknown = sorted(set(kwargs) - {"races", "timeout"})
    if unknown or len(args) > 1:
        problem = f"takes no {', '.join(unknown)}" if unknown else f"takes one number of GPUs, got {len(args)}"
        raise UsageError(f"{marker} {problem}; write {marker}({DEFAULT_NUM_GPUS}); options are races, timeout")
    num_devices = args[0] if args else DEFAULT_NUM_GPUS
    is_number = isinstance(num_devices, int) and not isinstance(num_devices, bool)
    if not is_number or not 1 <= num_devices <= MAX_VIRTUAL_DEVICES:
        raise UsageError(f"{marker}({num_devices!r}): give a whole number from 1 to {MAX_VIRTUAL_DEVICES}")
    return VirtualGpus(num_devices, _read_races(kwargs, marker))


def _read_races(options: Mapping[str, Any], marker: str) -> Races | None:
    given = options.get("races")
    for choice in RACES:
        if given == choice:
            return choice
    if "races" in options:
        raise UsageError(f"{marker}: races is {given!r}; give one of {', '.join(RACES)}")
    return None


def preload_gpus(config: pytest.Config) -> None:
    """Import what the ranks of a test need, and build the library if there is none, once, before the time limit begins.

    Nothing is set up: `torch.cuda` of this process does not change.

    Raises:
        UsageError: The library of virtual devices can't be built.
    """
    # These import torch, which takes a second: a session without ranks does without.
    from phalanx.stand_in import install  # noqa: F401
    from phalanx.virtual_gpus import set_up, torch_cuda  # noqa: F401
    from phalanx.virtual_gpus.building import built_library

    capturing = config.pluginmanager.getplugin("capturemanager")
    with nullcontext() if capturing is None else capturing.global_and_fixture_disabled():  # a build shows its progress
        try:
            built_library()
        except BuildError as error:
            raise UsageError(str(error)) from error


def set_up_gpus(gpus: VirtualGpus) -> None:
    """On a rank: set up the virtual GPUs, with phalanx in NCCL's place. On a warm rank, reset them.

    Raises:
        UsageError: This process can't have them.
    """
    # Hide real GPUs, and give processes that the rank starts the same virtual GPUs.
    set_environment(CUDA_VISIBLE_DEVICES="", PHALANX_VIRTUAL_GPUS=str(gpus.num_devices))
    if gpus.races is not None:
        set_environment(PHALANX_RACES=gpus.races)
    # These import torch: a session without ranks does without.
    from phalanx.stand_in import stand_in_for
    from phalanx.virtual_gpus.set_up import active, virtual_devices

    was_there = active() is not None
    virtual_devices(gpus.num_devices, face="cuda", races=gpus.races)
    if was_there:
        _freshen(gpus.num_devices)
    else:
        stand_in_for("nccl")  # until the process ends


def _freshen(num_devices: int) -> None:
    import torch

    for index in range(num_devices):
        torch.cuda.set_stream(torch.cuda.default_stream(index))
        torch.cuda.reset_peak_memory_stats(index)
    torch.cuda.set_device(0)
