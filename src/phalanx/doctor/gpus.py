"""Probes of GPUs: NCCL, the devices, and whether processes can share their memory through torch or phalanx."""

from __future__ import annotations

import os
import pickle
import re
import subprocess
import sys
from pathlib import Path

from phalanx.byte_sizes import format_size
from phalanx.doctor.cuda_ipc import DRIVER, HandOverRefused, NoCudaDevice, OneProcessOnly, hand_over
from phalanx.doctor.finding import Answer
from phalanx.real_gpus.device_files import count_device_files
from phalanx.settings import allocator_options, copy_environment

CUDA_S = 30.0  # the first use of a GPU may take seconds
SHARING_NCCL = (2, 30)
SHARING_SWITCH = "NCCL_MULTI_RANK_GPU_ENABLE"
_NO_SHARING = "To share CUDA tensors between ranks, start the container with --ipc=host and allow pidfd_getfd."
_STAGED = "phalanx takes collectives between ranks on one GPU through the host's memory, which is slower"
_NO_HAND_OVER = (
    "To have ranks share a GPU at full speed, start them where CUDA IPC is permitted: on Linux itself, or in one "
    "container with --ipc=host."
)
_NOT_EXPANDABLE = (
    "Take expandable_segments:True out of PYTORCH_ALLOC_CONF (or PYTORCH_CUDA_ALLOC_CONF) where ranks share a GPU."
)
_RECEIVER = """
import pickle, sys
from phalanx.doctor.asking import die_with_parent
die_with_parent(int(sys.argv[1]))
rebuild, arguments = pickle.load(sys.stdin.buffer)
print(float(rebuild(*arguments).sum()))
"""


def nccl() -> Answer:
    """Name NCCL's version, and say whether ranks can share a GPU with it."""
    import torch
    import torch.distributed as dist

    if not dist.is_available() or not dist.is_nccl_available():
        return Answer("absent", "not in this build of torch")
    found = tuple(torch.cuda.nccl.version())
    text = ".".join(map(str, found))
    if found < SHARING_NCCL:
        return Answer("ok", f"{text}; one rank a GPU (several need {'.'.join(map(str, SHARING_NCCL))} or newer)")
    if copy_environment().get(SHARING_SWITCH) == "1":
        return Answer("ok", f"{text}; ranks may share a GPU")
    return Answer("ok", f"{text}; ranks may share a GPU when {SHARING_SWITCH}=1 is set")


def cuda_devices(devices: Path = Path("/dev")) -> Answer:
    """List the GPUs with their memory."""
    import torch

    if torch.cuda.is_available():
        numbers = range(torch.cuda.device_count())
        return Answer("ok", "; ".join(_describe(number) for number in numbers))
    num_there = count_device_files(devices)
    if not num_there:
        return Answer("absent", "none: ranks compute on the CPU")
    if torch.version.cuda is None:
        text = f"{num_there} there, but this torch is built without CUDA"
        return Answer("note", text, "Install a CUDA build of torch to use them.")
    advice = "Look at `nvidia-smi`: the driver may be older than this torch's CUDA, or CUDA_VISIBLE_DEVICES empty."
    return Answer("note", f"{num_there} there, but CUDA {torch.version.cuda} can't use them", advice)


def _describe(number: int) -> str:
    import torch

    free, total = torch.cuda.mem_get_info(number)
    return f"{torch.cuda.get_device_name(number)}, {format_size(free)} free of {format_size(total)}"


def cuda_sharing() -> Answer:
    """Share a tensor on a GPU with another process, which reads it."""
    import torch

    if not torch.cuda.is_available():
        return Answer("absent", "no CUDA device")
    from torch.multiprocessing.reductions import reduce_tensor

    tensor = torch.ones(1024, device="cuda")
    done = subprocess.run(
        [sys.executable, "-c", _RECEIVER, str(os.getpid())],
        input=pickle.dumps(reduce_tensor(tensor)),
        capture_output=True,
        check=False,
    )
    if done.returncode == 0 and float(done.stdout) == 1024:
        return Answer("ok", "another process read a tensor on the GPU")
    lines = done.stderr.decode(errors="replace").strip().splitlines() or ["it read other values"]
    return Answer("note", f"does not work: {lines[-1]}", _NO_SHARING)


def phalanx_sharing(driver: str = DRIVER) -> Answer:
    """Hand GPU memory over to another process as phalanx does, and see whether torch's memory can be, too."""
    try:
        hand_over(driver)
    except NoCudaDevice as absence:
        return Answer("absent", str(absence))
    except OneProcessOnly:
        text = "only one process may use this GPU at a time (compute mode EXCLUSIVE_PROCESS), so ranks can't share it"
        return Answer("note", text, "`nvidia-smi -c 0`, as root, lets several use it.")
    except HandOverRefused as refusal:
        return Answer("note", f"CUDA IPC does not work: {refusal}; {_STAGED}", _NO_HAND_OVER)
    if re.search(r"expandable_segments\s*:\s*true", allocator_options(), re.IGNORECASE):
        text = f"torch is set to use expandable segments, which can't be handed over; {_STAGED}"
        return Answer("note", text, _NOT_EXPANDABLE)
    return Answer("ok", "ranks can share one through phalanx; they take turns on it")
