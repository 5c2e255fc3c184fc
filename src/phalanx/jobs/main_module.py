"""Make and run the program's `__main__` module as `python` would."""

from __future__ import annotations

import builtins
import importlib.util
import io
import os
import pkgutil
import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec, SourceFileLoader
from types import CodeType, ModuleType, TracebackType

from phalanx.jobs.program import Program, replace_process


def run_main(program: Program) -> None:
    """Run a program as `__main__`; an executable replaces this process.

    Raises:
        BaseException: Whatever the program raises.
    """
    if program.kind == "executable":
        replace_process(program)
    main = ModuleType("__main__")
    main.__dict__.update(__annotations__={}, __builtins__=builtins)
    # It stays in sys.modules: pickle, DataLoader's workers and multiprocessing look for the program's classes in it.
    sys.modules["__main__"] = main
    code = _LOADERS[program.kind](program, main)
    exec(code, main.__dict__)


def without_own_frames(trace: TracebackType | None) -> TracebackType | None:
    """Return a traceback without phalanx's frames, as if Python itself had run the program."""
    here = (__file__, os.path.join(os.path.dirname(__file__), "script.py"))
    while trace is not None and trace.tb_frame.f_code.co_filename in here:
        trace = trace.tb_next
    return trace


def _load_script(program: Program, main: ModuleType) -> CodeType:
    path = os.path.abspath(program.target)
    _prepend(os.path.dirname(os.path.realpath(path)))
    sys.argv[:] = [program.target, *program.arguments]
    main.__file__ = path
    main.__loader__ = SourceFileLoader("__main__", path)
    main.__dict__["__cached__"] = None
    with io.open_code(path) as file:
        code = pkgutil.read_code(file)
        if isinstance(code, CodeType):
            return code
    with io.open_code(path) as file:
        return compile(file.read(), path, "exec", dont_inherit=True)


def _load_folder(program: Program, main: ModuleType) -> CodeType:
    path = os.path.abspath(program.target)
    sys.path.insert(0, path)
    sys.argv[:] = [program.target, *program.arguments]
    finder = pkgutil.get_importer(path)
    spec = None if finder is None else finder.find_spec("__main__")
    if spec is None:
        raise ImportError(f"can't find '__main__' module in {program.target!r}")
    return _take_spec(spec, main, "")


def _load_module(program: Program, main: ModuleType) -> CodeType:
    _prepend(os.getcwd())
    sys.argv[:] = ["-m", *program.arguments]
    spec = importlib.util.find_spec(program.target)
    if spec is not None and spec.submodule_search_locations is not None:
        spec = importlib.util.find_spec(f"{program.target}.__main__")
    if spec is None:
        raise ImportError(f"no module named {program.target}")
    code = _take_spec(spec, main, spec.parent)
    sys.argv[0] = main.__file__ or ""
    return code


def _take_spec(spec: ModuleSpec, main: ModuleType, package: str | None) -> CodeType:
    get_code: Callable[[str], CodeType | None] | None = getattr(spec.loader, "get_code", None)
    code = get_code(spec.name) if get_code is not None else None
    if code is None:
        raise ImportError(f"no code in {spec.name}")
    main.__file__ = spec.origin
    main.__loader__ = spec.loader
    main.__package__ = package
    main.__spec__ = spec
    main.__dict__["__cached__"] = spec.cached
    return code


def _prepend(folder: str) -> None:
    if not sys.flags.safe_path:
        sys.path.insert(0, folder)


_LOADERS = {"script": _load_script, "folder": _load_folder, "module": _load_module}
