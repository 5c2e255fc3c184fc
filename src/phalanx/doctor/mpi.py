"""Probes of MPI: the launcher on the search path, and mpi4py."""

from __future__ import annotations

import functools
import importlib.util
import os
import re
import shutil
import signal
import subprocess
import sys

from phalanx.doctor.asking import die_with_parent
from phalanx.doctor.finding import Answer, Probe, Topic

_LIBRARY = """
import mpi4py
mpi4py.rc.initialize = False
from mpi4py import MPI
print(MPI.Get_library_version())
"""
_ANSWER_S = 4.0
_BROKEN_LAUNCHER = "Repair or remove that mpiexec if you start ranks with it; phalanx.spawn and torchrun do without."
_BROKEN_BINDING = "Install mpi4py again beside the MPI you use, if you use it: phalanx does without."
_FAMILIES = {"Open MPI": r"Open MPI|OpenRTE|PRRTE|prterun", "MPICH": r"MPICH|HYDRA", "Intel MPI": r"Intel\(R\) MPI"}


def binding() -> Answer:
    """Load mpi4py without starting MPI."""
    if importlib.util.find_spec("mpi4py") is None:
        return Answer("absent", "not installed; phalanx does without it")
    code, output = _library()
    if code != 0:
        return Answer("note", f"can't be loaded: {_last_line(output)}", _BROKEN_BINDING)
    return Answer("ok", f"uses {_family(output)} {_version(output)}")


def launcher() -> Answer:
    """Find mpiexec, ask whose it is, and compare it with the library that mpi4py uses."""
    path = shutil.which("mpiexec") or shutil.which("mpirun")
    if path is None:
        return Answer("absent", "not on PATH; only needed to start ranks with it")
    try:
        code, output = _run((path, "--version"))
    except subprocess.TimeoutExpired:
        return Answer("note", f"{path} does not answer within {_ANSWER_S:g} s", _BROKEN_LAUNCHER)
    if code != 0:
        return Answer("note", f"{path} fails with exit code {code}: {_last_line(output)}", _BROKEN_LAUNCHER)
    text, family = f"{_family(output)} {_version(output)}, {path}", _family(output)
    code, output = _library()
    if code != 0 or _family(output) == family:
        return Answer("ok", text)
    advice = f"Start mpi4py programs with the mpiexec of {_family(output)}: under {family}'s each rank is alone."
    return Answer("note", f"{text}, but mpi4py uses {_family(output)}", advice)


@functools.cache  # a process asks both probes, and loading takes a while
def _library() -> tuple[int, str]:
    return _run((sys.executable, "-c", _LIBRARY))


def _run(command: tuple[str, ...]) -> tuple[int, str]:
    """Run a program. What it leaves running is ended with this process.

    Raises:
        TimeoutExpired: It did not end in time.
    """
    # Should the doctor be killed now, this process must live long enough to end what a hanging mpiexec has started.
    signal.signal(signal.SIGTERM, lambda *_: os.killpg(0, signal.SIGKILL))
    die_with_parent(os.getppid(), signal.SIGTERM)
    # A file, for a pipe would have to be read until the last process that holds it ends.
    with open(os.memfd_create("phalanx-doctor"), "w+", errors="replace") as output:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            timeout=_ANSWER_S,
            check=False,
        )
        output.seek(0)
        return done.returncode, output.read()


def _family(output: str) -> str:
    return next((name for name, sign in _FAMILIES.items() if re.search(sign, output)), "an unknown MPI")


def _version(output: str) -> str:
    found = re.search(r"\d+\.\d+(\.\d+)?", output)
    return found[0] if found else "of unknown version"


def _last_line(output: str) -> str:
    return (output.strip().splitlines() or ["it says nothing"])[-1]


TOPIC = Topic(
    "MPI",
    (
        Probe("mpi4py", binding, 2 * _ANSWER_S, is_needed=False, advice_when_lost=_BROKEN_BINDING),
        Probe("mpiexec", launcher, 3 * _ANSWER_S, is_needed=False, advice_when_lost=_BROKEN_LAUNCHER),
    ),
)
