"""The page that tells preloaded processes which system call fails: see failing_calls.c."""

from __future__ import annotations

import ctypes
import mmap
import os
import shutil
import subprocess
from pathlib import Path

LAUNCHER, ZYGOTE, NEWBORN, NOBODY = -1, -2, -3, -4
_SOURCE = Path(__file__).with_name("failing_calls.c")
_NAME = "FAILING_CALLS_PAGE"


class Page(ctypes.Structure):
    """As `struct control` in the library."""

    _fields_ = (
        ("role", ctypes.c_int32),
        ("call", ctypes.c_int32),
        ("error", ctypes.c_int32),
        ("first", ctypes.c_int32),
        ("count", ctypes.c_int32),
        ("struck", ctypes.c_int32),
        ("counts", ctypes.c_int32 * 64),
    )


def find_compiler() -> str | None:
    return next((path for path in map(shutil.which, ("cc", "gcc", "clang")) if path), None)


def build_library(folder: Path) -> Path:
    compiler = find_compiler()
    assert compiler is not None
    library = folder / "failing_calls.so"
    subprocess.run([compiler, "-O1", "-shared", "-fPIC", "-o", library, _SOURCE, "-ldl"], check=True, timeout=60)
    return library


def preloading(library: Path, folder: Path) -> dict[str, str]:
    """Make the page, and return the variables for a process that shall use it."""
    path = folder / "page"
    path.write_bytes(bytes(ctypes.sizeof(Page)))
    return {**os.environ, "LD_PRELOAD": str(library), _NAME: str(path)}


def open_page(path: str | None = None) -> Page:
    with open(path or os.environ[_NAME], "r+b") as file:
        page = Page.from_buffer(mmap.mmap(file.fileno(), ctypes.sizeof(Page)))
    page.role, page.call = NOBODY, -1
    return page


def call_number(name: str) -> int:
    """Return the number of a call, in a process that has the library."""
    return call_number_in(None, name)


def call_number_in(library: Path | None, name: str) -> int:
    number: int = ctypes.CDLL(None if library is None else str(library)).failing_calls_number(name.encode())
    assert number >= 0, name
    return number


def become(role: int) -> None:
    """Say who this process is."""
    ctypes.CDLL(None).failing_calls_role(role)
