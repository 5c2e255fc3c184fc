"""Tell the engine what it needs for CUDA tensors: the driver, NVRTC, and a folder for compiled kernels.

This happens once per process, when its first group is made. The engine loads nothing and uses no GPU until the first
CUDA tensor arrives.
"""

from __future__ import annotations

import functools
import importlib.util
import logging
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path

import torch

from phalanx import engine, settings
from phalanx.groups.stream_order import is_virtual
from phalanx.launch import private_folders

_DRIVER = "libcuda.so.1"
_NVRTC = "libnvrtc.so"
_NOT_NVRTC = ("builtins", ".alt.")  # other libraries whose names begin with the same letters
_log = logging.getLogger("phalanx")


def has_cuda() -> bool:
    """Tell whether there may be tensors on CUDA devices with a driver, real or simulated."""
    if settings.cuda_driver() is not None:
        return True
    return torch.version.cuda is not None and not is_virtual("cuda")


def prepare_engine() -> None:
    """Tell the engine where to find CUDA, if this torch can have CUDA tensors."""
    if has_cuda():
        _tell_engine(settings.cuda_driver() or _DRIVER, settings.nvrtc())


@functools.cache  # once per process; a forked child inherits it
def _tell_engine(driver: str, nvrtc: str | None) -> None:
    candidates = list(_nvrtc_candidates()) if nvrtc is None else [nvrtc]
    engine.use_cuda(driver, candidates, _kernel_folder(driver, nvrtc), _warn_once)


def _nvrtc_candidates() -> Iterator[str]:
    """Yield files that may be NVRTC, the likeliest first: torch's own has the right version."""
    for folder in _library_folders():
        files = sorted(folder.glob("libnvrtc*.so*"), reverse=True)
        yield from (str(file) for file in files if not any(part in file.name for part in _NOT_NVRTC))
    major = (torch.version.cuda or "").partition(".")[0]
    if major:
        yield f"{_NVRTC}.{major}"
    yield _NVRTC


def _library_folders() -> Iterator[Path]:
    """Yield the folders that may have torch's CUDA libraries: of its wheels, of torch, of the environment."""
    spec = importlib.util.find_spec("nvidia")  # looks for the folder alone: the wheels have no code
    for place in (spec.submodule_search_locations or []) if spec is not None else []:
        yield from sorted(Path(place).glob("cu[0-9]*/lib"), reverse=True)  # from CUDA 13 on
        yield Path(place) / "cuda_nvrtc" / "lib"
    yield Path(torch.__file__).parent / "lib"
    yield Path(sys.prefix) / "lib"


def _kernel_folder(driver: str, nvrtc: str | None) -> str:
    """Return the folder for compiled kernels; empty if there is none, and each process compiles its own.

    If the user has chosen another driver or NVRTC, use a separate folder: a real GPU can't run a simulator's code.
    """
    is_usual = driver == _DRIVER and nvrtc is None
    kind = "kernels" if is_usual else f"kernels-by-{zlib.crc32(f'{driver}|{nvrtc}'.encode()):08x}"
    try:
        return str(private_folders.open_private(kind))
    except private_folders.NoFolderError:
        return ""


@functools.cache
def _warn_once(text: str) -> None:
    _log.warning("%s", text)
