"""Virtual GPUs of a test: a marker or a fixture asks for them, and only its ranks set them up, not pytest's process."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

import pytest

from phalanx.errors import BuildError, UsageError
from phalanx.gpu_models import find_gpu_model
from phalanx.launch.rank_devices import RankGpus
from phalanx.settings import MAX_VIRTUAL_DEVICES
from phalanx.testing.rank_gpus import read_gpu_spec, read_races

DEFAULT_NUM_GPUS = 4


def read_gpus(options: Mapping[str, Any], num_ranks: int) -> RankGpus | None:
    """Read `gpus` and `races` of @pytest.mark.ranks.

    Raises:
        UsageError: They make no sense.
    """
    spec, marker = options.get("gpus"), "@pytest.mark.ranks"
    if spec is not None:
        return read_gpu_spec(spec, options.get("races"), num_ranks, marker)
    if "races" in options:
        raise UsageError(f'{marker}: races is for virtual GPUs; add gpus="virtual"')
    return None


def read_own_marker(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> RankGpus:
    """Read @pytest.mark.virtual_gpus(4), which makes a test of one process with several GPUs.

    Raises:
        UsageError: It makes no sense.
    """
    marker = "@pytest.mark.virtual_gpus"
    unknown = sorted(set(kwargs) - {"gpu", "races", "timeout"})
    if unknown or len(args) > 1:
        problem = f"takes no {', '.join(unknown)}" if unknown else f"takes one number of GPUs, got {len(args)}"
        raise UsageError(f"{marker} {problem}; write {marker}({DEFAULT_NUM_GPUS}); options are gpu, races, timeout")
    num_devices = args[0] if args else DEFAULT_NUM_GPUS
    is_number = isinstance(num_devices, int) and not isinstance(num_devices, bool)
    if not is_number or not 1 <= num_devices <= MAX_VIRTUAL_DEVICES:
        raise UsageError(f"{marker}({num_devices!r}): give a whole number from 1 to {MAX_VIRTUAL_DEVICES}")
    model = None if kwargs.get("gpu") is None else find_gpu_model(kwargs["gpu"], f"{marker}: gpu").key
    return RankGpus(num_devices, model, read_races(kwargs.get("races"), marker))


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
