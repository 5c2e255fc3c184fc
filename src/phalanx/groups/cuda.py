"""Where the engine finds what it needs for CUDA tensors: the driver, NVRTC, and a folder for compiled kernels.

Told once in the life of a process, when its first group is made. Nothing is loaded and no GPU is touched by that: the
engine does so when a CUDA tensor first comes along.
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
_NOT_NVRTC = ("builtins", ".alt.")  # what lies beside it and has a name that begins alike
_log = logging.getLogger("phalanx")


def has_cuda() -> bool:
    """Tell whether tensors may be on CUDA devices that have a driver: real ones, or simulated by one the user names."""
    if settings.cuda_driver() is not None:
        return True
    return torch.version.cuda is not None and not is_virtual("cuda")


def prepare_engine() -> None:
    """Tell the engine where CUDA's parts are, if this torch can have CUDA tensors."""
    if has_cuda():
        _tell_engine(settings.cuda_driver() or _DRIVER, settings.nvrtc())


@functools.cache  # once in the life of a process; a forked child has what its parent was told
def _tell_engine(driver: str, nvrtc: str | None) -> None:
    candidates = list(_nvrtc_candidates()) if nvrtc is None else [nvrtc]
    engine.use_cuda(driver, candidates, _kernel_folder(driver, nvrtc), _warn_once)


def _nvrtc_candidates() -> Iterator[str]:
    """Yield what may be NVRTC, the likeliest first: torch's own has the version of its CUDA."""
    for folder in _library_folders():
        files = sorted(folder.glob("libnvrtc*.so*"), reverse=True)
        yield from (str(file) for file in files if not any(part in file.name for part in _NOT_NVRTC))
    major = (torch.version.cuda or "").partition(".")[0]
    if major:
        yield f"{_NVRTC}.{major}"
    yield _NVRTC


def _library_folders() -> Iterator[Path]:
    """Yield where torch's CUDA libraries may lie: its wheels' folders, its own, and that of a whole environment."""
    spec = importlib.util.find_spec("nvidia")  # looks for the folder alone: the wheels have no code
    for place in (spec.submodule_search_locations or []) if spec is not None else []:
        yield from sorted(Path(place).glob("cu[0-9]*/lib"), reverse=True)  # from CUDA 13 on
        yield Path(place) / "cuda_nvrtc" / "lib"
    yield Path(torch.__file__).parent / "lib"
    yield Path(sys.prefix) / "lib"


def _kernel_folder(driver: str, nvrtc: str | None) -> str:
    """Return where compiled kernels are kept; empty when there is no such place, and each process compiles its own.

    What a compiler of the user's choice has made is kept apart: a real GPU could not run what a simulator's has.
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
