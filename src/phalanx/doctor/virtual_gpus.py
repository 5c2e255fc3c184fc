"""Probes of what virtual GPUs and torch.compile are built with, and whether virtual GPUs are built."""

from __future__ import annotations

import subprocess
import sysconfig
from pathlib import Path

from phalanx.doctor.finding import Answer, Probe, Topic

_IMPORT_S = 60.0  # these probes import torch
_ANSWER_S = 15.0
_LIBRARY_S = 90.0
_PROGRAM = "#include <memory>\nint main() { auto one = std::make_unique<int>(1); return *one - 1; }\n"
_INSTALL = "Install a C++ compiler (apt install g++, dnf install gcc-c++, conda install gxx)"
_NEEDS = "virtual GPUs and torch.compile need a C++ compiler"


def compiler() -> Answer:
    """Find the C++ compiler and let it read a program."""
    from phalanx.errors import BuildError
    from phalanx.virtual_gpus.building.compiling import find_compiler

    try:
        found = find_compiler()
    except BuildError as error:
        first = str(error).partition("\n")[0]
        return Answer("note", f"{first}; torch.compile needs one too on the CPU", f"{_INSTALL}: {_NEEDS}.")
    text = f"{' '.join(found.command)}, {found.version or 'which does not say its version'}"
    problem = _try(found.command)
    if problem:
        return Answer("note", f"{text}, can't compile C++20: {problem}", f"{_INSTALL} that works: {_NEEDS}.")
    return Answer("ok", text)


def _try(command: tuple[str, ...]) -> str:
    """Return why the compiler can't compile a small program, or ""."""
    full = [*command, "-std=c++20", "-fsyntax-only", "-x", "c++", "-"]
    try:
        done = subprocess.run(full, input=_PROGRAM, capture_output=True, text=True, timeout=_ANSWER_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    lines = [line for line in done.stderr.splitlines() if "error" in line] or ["it says nothing"]
    return "" if done.returncode == 0 else lines[0]


def torch_headers() -> Answer:
    """Look for torch's headers."""
    from phalanx.errors import BuildError
    from phalanx.virtual_gpus.building.recipe import check_headers

    try:
        check_headers()
    except BuildError as error:
        return Answer("note", str(error).splitlines()[0], "Install torch with pip: virtual GPUs need its headers.")
    return Answer("ok", "there; virtual GPUs are built with them")


def python_headers(folder: Path | None = None) -> Answer:
    """Look for Python's headers."""
    header = (folder or Path(sysconfig.get_path("include"))) / "Python.h"
    if header.is_file():
        return Answer("ok", "there; torch.compile needs them, phalanx does without")
    return Answer(
        "note",
        f"there is no {header}, so torch.compile does not work on the CPU; phalanx does without",
        "Install Python's headers (apt install python3-dev, dnf install python3-devel) if you use torch.compile.",
    )


def library() -> Answer:
    """Look for the library of virtual GPUs, or find out whether it can be built."""
    from phalanx.errors import BuildError
    from phalanx.virtual_gpus.building import find_builds

    try:
        built, _ = find_builds()
    except BuildError as error:
        first, *rest = str(error).splitlines()
        return Answer("note", f"can't be used: {first}", " ".join(rest).strip().removeprefix("do").strip())
    if built is not None:
        return Answer("ok", f"built for this torch, {built}")
    missing = [
        name for name, answer in (("compiler", compiler()), ("headers", torch_headers())) if answer.status != "ok"
    ]
    if missing:
        cost = 'phalanx run --virtual-gpus, virtual_devices() and gpus="virtual" don\'t work'
        return Answer("note", f"not built, and without the {' and '.join(missing)} it can't be: {cost}")
    return Answer("absent", "not built yet; the first use builds it, in a minute or two, or: phalanx devices build")


TOPIC = Topic(
    "Virtual GPUs",
    (
        Probe("compiler", compiler, _IMPORT_S, is_needed=False),
        Probe("torch's headers", torch_headers, _IMPORT_S, is_needed=False),
        Probe("Python's headers", python_headers, is_needed=False),
        Probe("library", library, _LIBRARY_S, is_needed=False),
    ),
)
