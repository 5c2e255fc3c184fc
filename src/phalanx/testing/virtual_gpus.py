"""Virtual GPUs of a test: asked for by a marker or a fixture, set up on its ranks, never in pytest's own process."""

from __future__ import annotations

import importlib
import re
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import pytest

from phalanx.errors import UsageError
from phalanx.settings import MAX_VIRTUAL_DEVICES, RACES, Races, set_environment

DEFAULT_NUM_GPUS = 4
_SPEC = re.compile(r"virtual(?::([0-9]{1,6}))?")
# What ranks would import, each for itself.
_NEEDED = ("phalanx.virtual_gpus.set_up", "phalanx.virtual_gpus.torch_cuda", "phalanx.stand_in")


@dataclass(frozen=True)
class VirtualGpus:
    """The virtual GPUs that every rank of a test sees.

    Attributes:
        num_devices: How many.
        races: What happens to races on them; None for what PHALANX_RACES says.
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
        told = f"takes no {', '.join(unknown)}" if unknown else f"takes one number of GPUs, got {len(args)}"
        raise UsageError(f"{marker} {told}; write {marker}({DEFAULT_NUM_GPUS}); options are races, timeout")
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
    """Import, and build if need be, what the ranks of a test need: once, and outside the test's time limit.

    Nothing is set up: this process's own `torch.cuda` stays as it is.

    Raises:
        UsageError: The library of virtual devices can't be built.
    """
    for name in _NEEDED:
        importlib.import_module(name)
    from phalanx.errors import BuildError
    from phalanx.virtual_gpus.building import built_library

    capturing = config.pluginmanager.getplugin("capturemanager")
    with nullcontext() if capturing is None else capturing.global_and_fixture_disabled():  # a build shows its progress
        try:
            built_library()
        except BuildError as error:
            raise UsageError(str(error)) from error


def set_up_gpus(gpus: VirtualGpus) -> None:
    """On a rank: set up the virtual GPUs, with phalanx in NCCL's place. On a warm rank they are as after set-up.

    Raises:
        UsageError: This process can't have them.
    """
    # Real GPUs are hidden on purpose, and processes that the rank starts get the same virtual ones.
    set_environment(CUDA_VISIBLE_DEVICES="", PHALANX_VIRTUAL_GPUS=str(gpus.num_devices))
    if gpus.races is not None:
        set_environment(PHALANX_RACES=gpus.races)
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
