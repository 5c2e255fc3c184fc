"""Probes of torch: whether it can be imported, its version, and the backends that it has."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import os
import re

from phalanx.doctor import torch_changes
from phalanx.doctor.finding import Answer, Probe, Topic, first_line
from phalanx.doctor.gpus import CUDA_S, cuda_devices, cuda_sharing, nccl, phalanx_sharing
from phalanx.scarcity import advice_about

IMPORT_S = 60.0  # from a cold disk it takes long


def version() -> Answer:
    """Import torch, and compare its version with those that phalanx supports."""
    try:
        torch = importlib.import_module("torch")
        found = str(torch.__version__)
    except BaseException as error:  # ranks would meet it too, whatever it is
        return Answer("problem", f"can't be imported: {first_line(error)}; found at {_place()}", _repair(error))
    text = f"{found}, {os.path.dirname(torch.__file__ or '')}"
    installed = {dist.version for dist in importlib.metadata.distributions(name="torch")}
    if len(installed) > 1:
        text += f"; several versions are installed: {', '.join(sorted(installed))}"
    lowest, above = supported_range()
    if not lowest <= _numbers(found) < above:
        wanted = f"{_dotted(lowest)} or newer, below {_dotted(above)}"
        return Answer("note", f"{text}; phalanx is made for {wanted}", f"Install torch {wanted}.")
    return Answer("ok", text)


def supported_range() -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the oldest torch that phalanx supports, and the first that is too new, as its metadata say."""
    requirement = next(text for text in importlib.metadata.requires("phalanx") or [] if text.startswith("torch"))
    bounds = {sign: _numbers(number) for sign, number in re.findall(r"(>=|<)([\d.]+)", requirement)}
    return bounds[">="], bounds["<"]


def backends() -> Answer:
    """Name the backends that this torch was built with."""
    import torch.distributed as dist

    if not dist.is_available():
        advice = "Install a torch with torch.distributed; phalanx's own groups work without."
        return Answer("note", "this build has no torch.distributed", advice)
    has = {
        "gloo": dist.is_gloo_available(),
        "nccl": dist.is_nccl_available(),
        "mpi": dist.is_mpi_available(),
        "ucc": dist.is_ucc_available(),
    }
    there = [name for name in has if has[name]]
    missing = [name for name in has if not has[name]]
    text = f"{', '.join(there) or 'none'}; not in this build: {', '.join(missing) or 'none'}"
    if not dist.is_backend_available("phalanx"):
        advice = "Unset TORCH_DEVICE_BACKEND_AUTOLOAD, or install phalanx again, to have the backend by its name."
        return Answer("note", f"{text}; phalanx has not been registered", advice)
    return Answer("ok", f"phalanx, {text}")


def _place() -> str:
    try:
        found = importlib.util.find_spec("torch")
    except (ImportError, ValueError):
        found = None
    return "nowhere" if found is None else str(found.origin)


def _repair(error: BaseException) -> str:
    lowest, _ = supported_range()
    if isinstance(error, ModuleNotFoundError) and error.name == "torch":
        return f"Install torch {_dotted(lowest)} or newer."
    return advice_about(error) or (
        "Run `python -c 'import torch'` to see all of it: something hides torch, or it must be installed again."
    )


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", text)[:2])


def _dotted(numbers: tuple[int, ...]) -> str:
    return ".".join(map(str, numbers))


TOPIC = Topic(
    "torch",
    (
        Probe("torch", version, IMPORT_S,
              advice_when_lost="Run `python -c 'import torch'`: it does not come to an end here."),
        Probe("backends", backends, is_needed=False),
        Probe("NCCL", nccl, is_needed=False),
        Probe("CUDA devices", cuda_devices, CUDA_S, is_needed=False,
              advice_when_lost="Look at `nvidia-smi`: CUDA does not answer."),
        Probe("CUDA IPC", cuda_sharing, CUDA_S, is_needed=False),
        Probe("shared GPU", phalanx_sharing, CUDA_S, is_needed=False),
        *torch_changes.PROBES,
    ),
    is_chain=True,
)  # fmt: skip
