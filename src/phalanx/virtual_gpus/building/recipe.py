"""The sources, the flags and the name of a build. Two processes with the same recipe can share a library.

The compiler does not belong to the recipe: a process must find a finished library without a compiler.
"""

from __future__ import annotations

import hashlib
import platform
import re
from dataclasses import dataclass
from pathlib import Path

import torch

from phalanx.errors import BuildError

SOURCES = Path(__file__).parent.parent / "native"
MAIN_SOURCE = "core.cpp"
_TYPES = (".cpp", ".hpp")
# With -O2, optimising torch's headers would double the build time, and operations run in torch's own kernels anyway.
_OPTIONS = ("-std=c++20", "-O1", "-g0", "-DNDEBUG", "-fPIC", "-shared")
# Use the C++ standard library that torch has loaded, because exceptions pass between torch and ours. Some compilers
# would link a second one.
_LIBRARIES = ("-ltorch_cpu", "-lc10", "-nodefaultlibs", "-lc", "-lm", "-lgcc")


@dataclass(frozen=True)
class Recipe:
    """How to build the library for the torch of this process.

    Attributes:
        sources: Folder with the sources.
        name: The unique name of the build: the version of torch, and a digest of everything that matters.
    """

    sources: Path
    name: str

    def arguments(self, output: Path) -> list[str]:
        """Return the arguments for the compiler."""
        include, libraries = _torch_folder() / "include", _torch_folder() / "lib"
        return [
            *_options(),
            f"-isystem{include}",
            f"-isystem{include / 'torch/csrc/api/include'}",
            str(self.sources / MAIN_SOURCE),
            "-o",
            str(output),
            f"-L{libraries}",
            *_LIBRARIES,
            f"-Wl,-rpath,{libraries}",
        ]


def make_recipe(sources: Path = SOURCES) -> Recipe:
    """Return the recipe for these sources and the torch of this process.

    Raises:
        BuildError: The sources are missing.
    """
    files = sorted(path for path in sources.glob("*") if path.suffix in _TYPES)
    if not (sources / MAIN_SOURCE).is_file():
        raise BuildError(f"the sources of virtual devices are not in {sources}\n  do       install phalanx again")
    digest = hashlib.sha256()
    facts = (torch.__version__, torch.version.git_version, platform.machine(), *_options(), *_LIBRARIES)
    for part in [*(str(fact).encode() for fact in facts), *(each for path in files for each in _contents(path))]:
        digest.update(len(part).to_bytes(8, "big") + part)
    version = re.sub(r"[^\w.+-]", "_", str(torch.__version__))
    return Recipe(sources, f"{version}-{digest.hexdigest()[:16]}")


def check_headers() -> None:
    """Make sure that torch came with its headers.

    Raises:
        BuildError: It did not.
    """
    header = _torch_folder() / "include" / "ATen" / "ATen.h"
    if not header.is_file():
        raise BuildError(
            f"virtual devices are built with torch's headers, and this torch has none: there is no {header}\n"
            "  do       install torch with pip, or your distribution's package with torch's headers"
        )


def _options() -> tuple[str, ...]:
    return (*_OPTIONS, f"-D_GLIBCXX_USE_CXX11_ABI={int(torch._C._GLIBCXX_USE_CXX11_ABI)}")


def _contents(path: Path) -> tuple[bytes, bytes]:
    return path.name.encode(), path.read_bytes()


def _torch_folder() -> Path:
    return Path(torch.__file__).parent
