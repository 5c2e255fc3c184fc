"""The virtual GPUs of a job: the variables by which ranks, and the processes that they start, set them up."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from phalanx.byte_sizes import size_in_bytes
from phalanx.errors import UsageError
from phalanx.settings import races, stood_in_for, virtual_gpus, virtual_memory

_HIDDEN = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True)
class GpuOptions:
    """The options about GPUs; None for options that are not given.

    Attributes:
        real: Which real GPUs ranks see (--gpus).
        num_virtual: How many virtual ones (--virtual-gpus).
        memory: How much memory each of those has (--virtual-memory).
        races: What happens to races on them (--races).
    """

    real: str | None = None
    num_virtual: int | None = None
    memory: str | None = None
    races: str | None = None


def with_virtual_gpus(
    options: GpuOptions, environment: Mapping[str, str], set_by_user: Mapping[str, str]
) -> dict[str, str]:
    """Return the environment in which `import torch` sets up the virtual GPUs, and real GPUs are hidden.

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
        ("--virtual-memory", "PHALANX_VIRTUAL_MEMORY", options.memory),
        ("--races", "PHALANX_RACES", options.races),
    ):
        if value is not None and not is_virtual:
            raise UsageError(f"{option} is for virtual GPUs; say how many, such as --virtual-gpus 8")
        if value is not None:
            changed[name] = value
    if is_virtual:
        _check(changed, options)
    return changed


def _check(environment: Mapping[str, str], options: GpuOptions) -> None:
    size_in_bytes(
        virtual_memory(environment), "PHALANX_VIRTUAL_MEMORY" if options.memory is None else "--virtual-memory"
    )
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
    parts = [f"setting up {what} of {virtual_memory(environment)} on the CPU"]
    if names:
        parts.append(f"phalanx stands in for {' and '.join(names)}")
    if "nccl" in stood_in_for(environment) and num_gpus < num_ranks:
        parts.append(f"there are fewer GPUs than the {num_ranks} ranks, and NCCL allows one rank per GPU")
    return "; ".join(parts)
