"""Refuse virtual devices if a process can't have them, before torch is changed, and say what to do instead."""

from __future__ import annotations

import re
import sys

import torch

from phalanx.errors import UsageError
from phalanx.settings import hides_gpus
from phalanx.virtual_gpus.request import Face, Setup

OWN_NAME = "virtual"
_UNNAMED = "privateuseone"
_OLDEST, _TOO_NEW = (2, 11), (2, 16)


def check_process(face: Face) -> None:
    """Make sure that this process can have virtual devices.

    Raises:
        UsageError: It can't.
    """
    _check_torch(str(torch.__version__))
    if not sys.platform.startswith("linux"):
        raise UsageError(f"virtual devices need Linux, and this is {sys.platform}; run them in a container")
    if torch.cuda.is_initialized():
        raise UsageError(
            "virtual devices can't be set up: this process has already used CUDA\n"
            "  do       call phalanx.virtual_devices() first thing in the program, before anything touches torch.cuda"
        )
    _check_other_backend()
    if face == "cuda":
        _check_real_gpus()


def check_again(wanted: Setup, there: Setup) -> None:
    """Make sure that a second set-up asks for the same devices as the first.

    Raises:
        UsageError: It asks for something else.
    """
    if wanted != there:
        raise UsageError(
            "virtual devices are set up once in the life of a process\n"
            f"  there    {there}\n"
            f"  asked    {wanted}\n"
            "  do       ask for the same, or start another process"
        )


def _check_torch(version: str) -> None:
    release = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
    if not _OLDEST <= release < _TOO_NEW:
        raise UsageError(
            f"virtual devices are for torch {'.'.join(map(str, _OLDEST))} to 2.15, and this is torch {version}\n"
            "  do       install one of these, or a phalanx that knows this torch"
        )


def _check_other_backend() -> None:
    name = torch._C._get_privateuse1_backend_name()
    if name not in (_UNNAMED, OWN_NAME):
        taken = f'another package has registered the device type "{name}"'
    elif hasattr(torch, name):
        taken = f"another package has registered torch.{name}"
    else:
        return
    raise UsageError(
        f"virtual devices can't be set up: {taken}, and torch has room for one such in a process\n"
        "  do       run without that package; TORCH_DEVICE_BACKEND_AUTOLOAD=0 keeps torch from loading it by itself"
    )


def _check_real_gpus() -> None:
    if torch.version.hip is not None:
        raise UsageError(
            'virtual devices with face "cuda" do not work with a torch that is built for ROCm\n'
            '  do       use devices of their own type, face="virtual", or a torch for the CPU'
        )
    # To count them, torch would ask CUDA's driver, which starts a thread, and a process with threads can't be forked.
    num_gpus = 0 if hides_gpus() else torch.cuda.device_count()
    if num_gpus:
        raise UsageError(
            f'virtual devices with face "cuda" would hide the real GPUs of this machine ({num_gpus} visible)\n'
            '  do       hide them on purpose, with CUDA_VISIBLE_DEVICES="" in the environment,\n'
            '           or use devices of their own type beside them, face="virtual"'
        )
