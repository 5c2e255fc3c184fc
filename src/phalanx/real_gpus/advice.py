"""Advice for a program that wants a GPU where torch can use none: run it on virtual ones."""

from __future__ import annotations

import re

from phalanx.diagnosis.tracebacks import text_of
from phalanx.settings import MAX_VIRTUAL_DEVICES

_BEGINNING = "  do       torch can use no GPU here; to give each rank a virtual one, "
# What torch says, built with CUDA or without.
_NO_GPU = re.compile(
    # The GPU itself, its memory and its streams.
    r"'torch\._C' has no attribute '_cuda|Torch not compiled with CUDA enabled|compiled without CUDA support|"
    r"Found no NVIDIA driver|No CUDA GPUs are available|no CUDA-capable device|"
    r"Cannot access accelerator device when none is available|not linked with support for cuda devices|"
    r"torch\.cuda\.Stream requires CUDA support|dummy base class (?:Stream|Event)\b|"
    r"Cannot get CUDA generator without ATen_cuda|pin_memory=True requires a CUDA or other accelerator backend|"
    # A group of NCCL.
    r"doesn't have NCCL built in|ProcessGroupNCCL is only supported|has no attribute 'ProcessGroupNCCL'|"
    r"device_id is an int, but no accelerator support is found|"
    r"device_id cuda\S* does not match the current compilation's accelerator support"
)


def advise(error: BaseException, num_ranks: int, started_by: str = "") -> None:
    """Add a line of advice to an error of torch that says that there is no GPU; its type and text stay as they are.

    Args:
        error: The error.
        num_ranks: How many ranks the job has.
        started_by: What has started the ranks: "pytest", "spawn", or "" for anything else.
    """
    notes = getattr(error, "__notes__", ())
    is_advised = any(isinstance(note, str) and note.startswith(_BEGINNING) for note in notes)
    if _NO_GPU.search(text_of(error)) and not is_advised:
        error.add_note(advice(num_ranks, started_by))


def advice(num_ranks: int, started_by: str = "") -> str:
    """Return the line, which says how ranks that were started like this get virtual GPUs."""
    number = min(num_ranks, MAX_VIRTUAL_DEVICES)
    ways = {
        "pytest": 'write gpus="virtual" in the marker ranks',
        "spawn": f"call spawn with virtual_gpus={number}",
    }
    usual = f"start with phalanx run --virtual-gpus {number}, or set PHALANX_VIRTUAL_GPUS={number}"
    return _BEGINNING + ways.get(started_by, usual)
