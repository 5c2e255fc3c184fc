"""The program that ranks run, found before any rank starts: a script, folder, zip archive, module or executable.

The launcher does not import the program, because the program may import torch, which the launcher never does.
"""

from __future__ import annotations

import difflib
import importlib.machinery
import os
import shutil
import signal
import stat
import sys
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NoReturn

from phalanx.errors import UsageError


@dataclass(frozen=True)
class Program:
    """A program that exists.

    Attributes:
        kind: A Python file, a folder or archive that contains a `__main__`, a module, as with python -m, or an
            executable, which runs without Python.
        target: Its path or name, as the user gave it.
        arguments: Its arguments.
    """

    kind: Literal["script", "folder", "module", "executable"]
    target: str
    arguments: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """A short name for people."""
        return self.target if self.kind == "module" else Path(self.target).stem or self.target

    @property
    def command(self) -> list[str]:
        """The command that runs it without phalanx."""
        before = {"module": ["python", "-m"], "executable": []}.get(self.kind, ["python"])
        return [*before, self.target, *self.arguments]


def find_program(target: str, arguments: Sequence[str], *, is_module: bool) -> Program:
    """Find the program that the user has named.

    Raises:
        UsageError: It does not exist, or can't be run.
    """
    if is_module:
        _check_module(target)
        return Program("module", target, tuple(arguments))
    path = Path(target)
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError):
        raise UsageError(f"{target}: no such file{_suggest_file(path) or _suggest_executable(target)}") from None
    if stat.S_ISDIR(mode):
        if not any((path / name).is_file() for name in ("__main__.py", "__main__.pyc")):
            raise UsageError(f"{target} is a folder without __main__.py; name a script in it")
        return Program("folder", target, tuple(arguments))
    if not os.access(path, os.R_OK):
        raise UsageError(f"{target}: you may not read this file")
    if stat.S_ISREG(mode) and zipfile.is_zipfile(path):
        return Program("folder", target, tuple(arguments))
    return Program("script", target, tuple(arguments))


def find_executable(target: str, arguments: Sequence[str], *, search: str | None) -> Program:
    """Find the executable that the user has named.

    Args:
        target: Its path, or its name in one of the folders to search.
        arguments: Its arguments.
        search: The folders to search, as in PATH; PATH itself if this is None.

    Raises:
        UsageError: It does not exist, or you may not execute it.
    """
    if shutil.which(target, path=search) is not None:
        return Program("executable", target, tuple(arguments))
    if os.sep not in target and Path(target).is_file():
        raise UsageError(f"no command {target} is in PATH; for the file in this folder, give ./{target}")
    if os.sep not in target:
        raise UsageError(f"no command {target} is in PATH; give the path of an executable")
    if not Path(target).is_file():
        raise UsageError(f"{target}: no such file")
    raise UsageError(f"{target}: you may not execute this file; `chmod +x {target}` allows it, if it is yours")


def replace_process(program: Program) -> NoReturn:
    """Replace this process with an executable, which inherits the standard streams and environment variables.

    Raises:
        OSError: The kernel can't execute it.
    """
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them, and the executable would too
        signal.signal(number, signal.SIG_DFL)
    os.execvp(program.target, program.command)


def _suggest_executable(target: str) -> str:
    """Advise somebody who has named an executable, as mpirun and srun want it."""
    if os.sep in target or shutil.which(target) is None:
        return ""
    if target.startswith("python"):
        return f"; leave {target} out, as phalanx run takes a script, or give --no-python before it"
    return "; for an executable, give --no-python before it"


def _suggest_file(path: Path) -> str:
    try:
        names = [entry.name + "/" * entry.is_dir() for entry in path.parent.iterdir()]
    except OSError:
        return f": there is no folder {path.parent}"
    names = [name for name in names if name.endswith((".py", "/")) and not name.startswith(".")]
    stems = {name.removesuffix(".py").rstrip("/"): name for name in names}  # ".py" alone makes no two names alike
    alike = difflib.get_close_matches(path.name.removesuffix(".py"), stems, n=3, cutoff=0.7)
    close = [stems[stem] for stem in alike]
    return f"; did you mean {' or '.join(str(path.parent / name) for name in close)}?" if close else ""


def _check_module(name: str) -> None:
    if name.endswith(".py") and Path(name).exists():
        raise UsageError(f"-m takes the name of a module, not of a file: give {name} without -m")
    search: list[str] | None = [os.getcwd(), *sys.path]
    parts = name.split(".")
    spec: importlib.machinery.ModuleSpec | None = None
    for length in range(1, len(parts) + 1):
        whole = ".".join(parts[:length])
        spec = _find_spec(whole, search, is_top=length == 1)
        if spec is None:
            raise UsageError(f"no module named {whole}{_suggest_module(whole, search or [])}")
        if spec.submodule_search_locations is None and length < len(parts):
            raise UsageError(f"no module named {name}: {whole} is not a package")
        search = list(spec.submodule_search_locations or [])
    is_package = spec is not None and spec.submodule_search_locations is not None
    if is_package and _find_spec(f"{name}.__main__", search, is_top=False) is None:
        raise UsageError(f"{name} is a package without __main__.py; name a module in it")


def _find_spec(name: str, search: list[str] | None, *, is_top: bool) -> importlib.machinery.ModuleSpec | None:
    """Ask Python's finders, without importing the packages above the module as importlib.util.find_spec would."""
    spec = importlib.machinery.PathFinder.find_spec(name, search)
    if spec is None and is_top:
        search = None  # a finder with its own search path, such as that of an editable install
    finders = sys.meta_path if spec is None else []
    return spec or next((found for finder in finders if (found := finder.find_spec(name, search)) is not None), None)


def _suggest_module(name: str, search: Sequence[str]) -> str:
    parent, _, last = name.rpartition(".")
    names: list[str] = []
    for folder in [search[0]] if not parent and search else search:
        try:
            entries = list(Path(folder).iterdir())
        except OSError:
            continue
        names += [entry.stem for entry in entries if entry.suffix == ".py" or (entry / "__init__.py").exists()]
    close = difflib.get_close_matches(last, names, n=3)
    shown = [f"{parent}.{each}" if parent else each for each in close]
    return f"; did you mean {' or '.join(shown)}?" if shown else ""
