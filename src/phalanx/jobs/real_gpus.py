"""The real GPUs of a job: which rank uses which GPU, and how much of its memory.

    8 ranks, 2 GPUs    ranks 0 to 3 on the first, ranks 4 to 7 on the second

A rank that shares a GPU sees only that GPU, as cuda:0, and has LOCAL_RANK 0, as with torchrun's --virtual-local-rank.
So a program that uses cuda:{LOCAL_RANK} runs unchanged.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from phalanx.errors import UsageError
from phalanx.real_gpus.discovery import (
    Gpu,
    find_gpus,
    fitting,
    is_exclusive,
    is_there,
    memory_of,
    names_one_twice,
    visible_gpus,
)
from phalanx.real_gpus.memory_shares import MemoryShare, check_shares, describe_shares, read_shares
from phalanx.settings import VISIBLE_GPUS, gpu_memory, mps_folder, stood_in_for

_DEVICE = re.compile(r"[0-9]+|(GPU|MIG)-[0-9a-fA-F-]+")
_HOW_MANY = re.compile(r"[0-9]{1,6}")
_WORDS = 'give how many, such as "1", or which: "0,1", "device=1", UUIDs, "all" or "none"'


@dataclass(frozen=True)
class GpuAssignment:
    """How ranks use GPUs.

    Attributes:
        environment: The variables of all ranks.
        rank_variables: The variables that differ between ranks, for each rank; empty if there are none.
        note: A line to print before ranks start, or "".
    """

    environment: dict[str, str]
    rank_variables: tuple[dict[str, str], ...] = ()
    note: str = ""


def assign_gpus(
    spec: str | None,
    memory: str | None,
    environment: Mapping[str, str],
    num_ranks: int,
    found: Sequence[Gpu] | None = None,
) -> GpuAssignment:
    """Decide which GPUs ranks see.

    Args:
        spec: The value of --gpus; with None, CUDA_VISIBLE_DEVICES does not change.
        memory: The value of --gpu-memory; None for PHALANX_GPU_MEMORY, or even shares if that is not set.
        environment: The variables of the ranks.
        num_ranks: The number of ranks.
        found: The GPUs of this machine; found by this function if not given.

    Raises:
        UsageError: The request is not possible.
    """
    text = memory or gpu_memory(environment)
    name = "--gpu-memory" if memory is not None else "PHALANX_GPU_MEMORY" if text else f"--gpus {spec}"
    if spec is None:
        if memory is not None:
            raise UsageError(
                "--gpu-memory shares real GPUs between ranks; say which, such as --gpus 1 (for virtual GPUs: "
                "--virtual-memory)"
            )
        return GpuAssignment(dict(environment), _limits(read_shares(text, name, [1] * num_ranks)) if text else ())
    found = find_gpus() if found is None else found
    spec = spec.strip()
    names = choose_gpus(spec, environment, found)
    others = {key: value for key, value in environment.items() if key != VISIBLE_GPUS}
    changed = others if spec == "all" else {**others, VISIBLE_GPUS: ",".join(names)}
    if not names:
        if memory is not None:
            raise UsageError(f"--gpu-memory divides the memory of GPUs, and --gpus {spec} leaves none")
        return GpuAssignment({key: value for key, value in changed.items() if key != "PHALANX_GPU_MEMORY"})
    if num_ranks > len(names):
        _check_sharing(names, environment, found)
    assigned = _share(names, text or "even", name, num_ranks, found)
    note = assigned.note
    if note and "nccl" not in stood_in_for(environment):
        note += " (NCCL refuses this by default; with --stand-in nccl, phalanx serves programs that ask for NCCL)"
    if not found:
        note = f"no GPU was found on this machine; ranks are told to use {', '.join(names)} all the same"
    return GpuAssignment({**changed, **assigned.environment}, assigned.rank_variables, note)


def choose_gpus(spec: str, environment: Mapping[str, str], found: Sequence[Gpu]) -> list[str]:
    """Return the GPUs that were asked for, as CUDA_VISIBLE_DEVICES names them.

    Args:
        spec: How many of the visible GPUs, or which GPUs.
        environment: The variables that say which GPUs are visible.
        found: The GPUs of this machine.

    Raises:
        UsageError: The text is not valid, or the GPUs do not exist.
    """
    if spec == "all":
        return [str(number) for number in range(len(found))]
    if spec == "none":
        return []
    if _HOW_MANY.fullmatch(spec):
        return _first(int(spec), environment, found)
    names = [part.strip() for part in spec.removeprefix("device=").removesuffix(",").split(",")]
    if not all(_DEVICE.fullmatch(name) for name in names):
        raise UsageError(f'--gpus: "{spec}" names no GPUs; {_WORDS}')
    if names_one_twice(names, found):
        raise UsageError(f'--gpus: "{spec}" names a GPU twice')
    missing = [name for name in names if not is_there(name, found)]
    if missing and (several := fitting(missing[0], found)):
        uuids = " and ".join(found[number].uuid for number in several)
        raise UsageError(f"--gpus {spec}: the UUIDs of {uuids} begin with {missing[0]}; give more characters")
    if found and missing:
        raise UsageError(f"--gpus {spec}: there is no GPU {missing[0]}; {_machine_has(found)}, numbered from 0")
    return names


def _first(count: int, environment: Mapping[str, str], found: Sequence[Gpu]) -> list[str]:
    visible = visible_gpus(found, environment)
    if count > len(visible):
        there = _machine_has(found)
        if len(visible) < len(found):
            there += f", and {VISIBLE_GPUS}={environment.get(VISIBLE_GPUS)} shows {len(visible)}"
        instead = f"--virtual-gpus {count} gives you virtual ones"
        if visible:
            instead = f"use --gpus {len(visible)}, which ranks can share, or {instead}"
        raise UsageError(f"--gpus {count}: {there}; {instead}")
    return visible[:count]


def _machine_has(found: Sequence[Gpu]) -> str:
    return f"this machine has {count_gpus(len(found)) if found else 'no GPU'}"


def count_gpus(count: int) -> str:
    """Write a number of GPUs."""
    return "1 GPU" if count == 1 else f"{count} GPUs"


def _check_sharing(names: Sequence[str], environment: Mapping[str, str], found: Sequence[Gpu]) -> None:
    exclusive = [name for name in names if is_exclusive(name, found)]
    # NVIDIA's MPS is one process to such a GPU, and serves many.
    if exclusive and not (mps_folder(environment) / "control").exists():
        raise UsageError(
            f"only one process may use GPU {exclusive[0]} at a time (compute mode EXCLUSIVE_PROCESS), so ranks can't "
            "share it; `nvidia-smi -c 0` as root changes that"
        )


def _share(names: Sequence[str], text: str, name: str, num_ranks: int, found: Sequence[Gpu]) -> GpuAssignment:
    if num_ranks <= len(names):
        shares = read_shares(text, name, [1] * num_ranks)
        for rank, share in enumerate(shares):
            check_shares([share], name, f"GPU {names[rank]}", memory_of(names[rank], found))
        return GpuAssignment({}, _limits(shares) if text != "even" else ())
    gpu_of = [rank * len(names) // num_ranks for rank in range(num_ranks)]
    shares = read_shares(text, name, [gpu_of.count(gpu) for gpu in gpu_of])
    for number, gpu in enumerate(names):
        on_it = [share for share, place in zip(shares, gpu_of, strict=True) if place == number]
        check_shares(on_it, name, f"GPU {gpu}", memory_of(gpu, found))
    variables = tuple(
        {
            VISIBLE_GPUS: names[gpu_of[rank]],
            "LOCAL_RANK": "0",
            "PHALANX_LOCAL_RANK": str(rank),
            "PHALANX_GPU_MEMORY": str(shares[rank]),
        }
        for rank in range(num_ranks)
    )
    sizes = {memory_of(gpu, found) for gpu in names}
    memory = describe_shares(shares, sizes.pop() if len(sizes) == 1 else 0)
    return GpuAssignment({}, variables, f"{num_ranks} ranks take turns on {count_gpus(len(names))}; {memory}")


def _limits(shares: Sequence[MemoryShare]) -> tuple[dict[str, str], ...]:
    """Return the memory limits of ranks that do not share a GPU."""
    return tuple({"PHALANX_GPU_MEMORY": str(share)} for share in shares)
