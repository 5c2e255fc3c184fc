"""The virtual GPUs and stand-ins of a job: the variables by which ranks, and their child processes, set them up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from phalanx.byte_sizes import size_in_bytes
from phalanx.errors import UsageError
from phalanx.gpu_models import PLAIN, find_gpu_model
from phalanx.settings import races, stood_in_for, virtual_gpu, virtual_gpus, virtual_memory

_HIDDEN = "CUDA_VISIBLE_DEVICES"
_STAND_IN = "PHALANX_STAND_IN"


@dataclass(frozen=True)
class GpuOptions:
    """The options about GPUs; None for options that are not given.

    Attributes:
        real: Which real GPUs ranks see (--gpus).
        num_virtual: How many virtual ones (--virtual-gpus).
        model: What those claim to be (--virtual-gpu).
        memory: How much memory each of those has (--virtual-memory).
        races: What happens to races on them (--races).
        stood_in_for: The backends that phalanx stands in for (--stand-in).
    """

    real: str | None = None
    num_virtual: int | None = None
    model: str | None = None
    memory: str | None = None
    races: str | None = None
    stood_in_for: tuple[str, ...] = ()


def with_virtual_gpus(
    options: GpuOptions, environment: Mapping[str, str], set_by_user: Mapping[str, str]
) -> dict[str, str]:
    """Return the environment in which `import torch` sets up virtual GPUs and stand-ins.

    With virtual GPUs, real GPUs are hidden.

    Args:
        options: The options of the command line.
        environment: The variables of the ranks.
        set_by_user: The variables that the command line sets (--env).

    Raises:
        UsageError: Options contradict each other, or a variable has an invalid value.
    """
    changed = dict(environment)
    if options.num_virtual is not None:
        if set_by_user.get(_HIDDEN):
            raise UsageError(f"--virtual-gpus hides real GPUs, and --env {_HIDDEN} shows some; give one of the two")
        changed |= {"PHALANX_VIRTUAL_GPUS": str(options.num_virtual), _HIDDEN: ""}
    is_virtual = virtual_gpus(changed) > 0
    if is_virtual and options.real is not None:
        raise UsageError(
            "--gpus chooses real GPUs, and virtual ones are asked for too; ranks see one kind or the other"
        )
    for option, name, value in (
        ("--virtual-gpu", "PHALANX_VIRTUAL_GPU", options.model),
        ("--virtual-memory", "PHALANX_VIRTUAL_MEMORY", options.memory),
        ("--races", "PHALANX_RACES", options.races),
    ):
        if value is not None and not is_virtual:
            raise UsageError(f"{option} is for virtual GPUs; say how many, such as --virtual-gpus 8")
        if value is not None:
            changed[name] = value
    if options.stood_in_for:
        _check_stand_in(changed, set_by_user, is_virtual=is_virtual)
        changed[_STAND_IN] = ",".join(sorted({*options.stood_in_for, *(["nccl"] if is_virtual else [])}))
    if is_virtual:
        _check(changed, options)
    return changed


def _check_stand_in(environment: Mapping[str, str], set_by_user: Mapping[str, str], *, is_virtual: bool) -> None:
    if _STAND_IN in set_by_user:
        raise UsageError(f"--stand-in and --env {_STAND_IN} say the same thing; give one of the two")
    if environment.get("TORCH_DEVICE_BACKEND_AUTOLOAD") == "0" and not is_virtual:
        raise UsageError(
            "--stand-in works only if torch loads phalanx, and TORCH_DEVICE_BACKEND_AUTOLOAD=0 prevents that; unset it"
        )


def _check(environment: Mapping[str, str], options: GpuOptions) -> None:
    gpu = virtual_gpu(environment) if options.model is None else find_gpu_model(options.model, "--virtual-gpu")
    memory = virtual_memory(gpu, environment)
    size_in_bytes(memory, "PHALANX_VIRTUAL_MEMORY" if options.memory is None else "--virtual-memory")
    races(environment)
    stood_in_for(environment)


def describe_virtual_gpus(environment: Mapping[str, str], num_ranks: int) -> str:
    """Return a line about the virtual GPUs and the stand-ins; empty if there are no virtual GPUs.

    The line is printed while the GPUs are being set up, which may still fail.
    """
    num_gpus = virtual_gpus(environment)
    if not num_gpus:
        return ""
    names = [{"nccl": "NCCL", "gloo": "Gloo", "mpi": "MPI"}[name] for name in stood_in_for(environment)]
    what = "1 virtual GPU" if num_gpus == 1 else f"{num_gpus} virtual GPUs"
    gpu = virtual_gpu(environment)
    claimed = "" if gpu.key == PLAIN else f", as {gpu.name},"
    parts = [f"setting up {what} of {virtual_memory(gpu, environment)}{claimed} on the CPU"]
    if names:
        parts.append(f"phalanx stands in for {' and '.join(names)}")
    if "nccl" in stood_in_for(environment) and num_gpus < num_ranks:
        parts.append(f"there are fewer GPUs than the {num_ranks} ranks, and NCCL allows one rank per GPU")
    return "; ".join(parts)
