"""Build the simulated CUDA driver with g++, once for every state of its sources."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

_SOURCES = Path(__file__).parent
_OPTIONS = ("-std=c++20", "-O1", "-shared", "-fPIC", "-fvisibility=hidden", "-pthread", "-Wall", "-Wextra")
_LONGEST_BUILD_S = 120


def has_compiler() -> bool:
    return shutil.which("g++") is not None


def user_folder() -> Path:
    """Return the folder where this user's builds are kept between runs."""
    return Path(tempfile.gettempdir()) / f"phalanx-cuda-simulator-{os.getuid()}"


def build_simulator(folder: Path) -> Path:
    """Return the library, built in the folder unless it is there. Several processes may build at once."""
    sources = sorted(_SOURCES.glob("*.cpp"))
    library = folder / f"simulated-cuda-{_digest()}.so"
    if library.exists():
        return library
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as drafts:
        draft = Path(drafts) / library.name
        command = ["g++", *_OPTIONS, "-o", str(draft), *map(str, sources), "-ldl"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=_LONGEST_BUILD_S, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"g++ could not build the simulated CUDA driver:\n{done.stderr}")
        draft.rename(library)
    return library


def _digest() -> str:
    digest = hashlib.sha256(repr(_OPTIONS).encode())
    for path in sorted((*_SOURCES.glob("*.cpp"), *_SOURCES.glob("*.hpp"))):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]
