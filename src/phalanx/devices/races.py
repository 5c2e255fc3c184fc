"""Find streams that touch the same memory without waiting for each other.

Operations of virtual devices run in program order, so a missing wait never changes the results here; on a GPU it does.
The native detector follows streams, events, the allocator, copies and collectives, and reports each race here.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import json
import os
import sys
import sysconfig
import threading
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from phalanx.errors import RaceError, UsageError

__all__ = ["RacePlace", "RaceReport", "RaceSide", "RaceWarning", "clear", "is_on", "races_mode", "seen"]

Mode = Literal["off", "warn", "raise"]
_MODES: tuple[Mode, ...] = ("off", "warn", "raise")
_Report = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_char_p)


class RaceWarning(UserWarning):
    """Two streams touch the same memory, and neither waits for the other. Each pair of lines is reported once."""


@dataclass(frozen=True)
class RacePlace:
    """A line of the program. If it is not known, the file is empty."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}" if self.file else "a line that is not known"


@dataclass(frozen=True)
class RaceSide:
    """One of two accesses that are not ordered.

    Attributes:
        place: The line; for the backward pass, that of the operation in forward.
        operation: What was called, such as "aten::add_".
        is_write: Whether it writes the memory; otherwise it reads it.
        device: The device's index.
        stream: The stream's number; 0 is the default one, those of collectives are below zero.
        tensor: Type and shape, such as "float32 (1024, 3)".
        backward_node: The node of the backward pass it belongs to, or "".
    """

    place: RacePlace
    operation: str
    is_write: bool
    device: int
    stream: int
    tensor: str
    backward_node: str


@dataclass(frozen=True)
class RaceReport:
    """A race that was found.

    Attributes:
        kind: "streams"; "allocation" (memory used on a stream that did not wait for the one it was allocated on);
            "reuse" (freed without record_stream); "collective" (used before work.wait()); "host" (pinned memory used
            before the copy was waited for).
        text: The whole report as text, as the RaceError has it.
        here: The later access, which did not wait.
        earlier: The one it should have waited for.
        freed: Where the memory was freed, for kind "reuse".
    """

    kind: str
    text: str
    here: RaceSide
    earlier: RaceSide
    freed: RacePlace | None


class _NativeAccess(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_uint64) for name in ("block", "lo", "hi")),
        *((name, ctypes.POINTER(ctypes.c_int64)) for name in ("sizes", "strides")),
        ("dtype", ctypes.c_char_p),
        *((name, ctypes.c_int32) for name in ("num_dims", "item_bytes", "is_write")),
    ]


class _Detector:
    """The native detector of this process. Threads may share it."""

    def __init__(self) -> None:
        self._native: ctypes.CDLL | None = None
        self._callback = _Report(self._report)  # keeps the function alive that native code calls
        self._thread = threading.local()  # .errors: what the native call this thread is in has found

    def connect(self, native: ctypes.CDLL) -> None:
        for name, result, arguments in _SIGNATURES:
            function = getattr(native, name)
            function.restype, function.argtypes = result, arguments
        if self._native is None:
            for prefix in _hidden_files():
                native.pxd_races_hide(prefix.encode())
            atexit.register(self._report_the_rest)
        native.pxd_races_connect(self._callback)
        self._native = native

    @property
    def native(self) -> ctypes.CDLL:
        if self._native is None:
            raise UsageError("there are no virtual devices in this process; call phalanx.virtual_devices(8) first")
        return self._native

    def is_on(self) -> bool:
        return self._native is not None and self._native.pxd_races_mode() != 0

    def call(self, name: str, *arguments: object) -> Any:
        """Call a native function, and raise the race it found."""
        errors: list[Exception] = []
        self._thread.errors = errors
        try:
            result = getattr(self.native, name)(*arguments)
        finally:
            self._thread.errors = None  # errors hold frames, and those the user's tensors
        if errors:
            raise errors.pop()
        return result

    def _report_the_rest(self) -> None:
        # A race of the host is raised by the next operation. At the end of the program no operation follows.
        if self.is_on():
            self.native.pxd_races_set_mode(_MODES.index("warn"))
            self.native.pxd_races_take_unraised()

    def _report(self, text: bytes) -> int | None:
        """Warn of a race, or return the exception to raise. Native code calls this on the thread that found it."""
        report = _read(text)
        error: Exception | None = None
        if self.native.pxd_races_mode() == _MODES.index("raise"):
            error = _error_of(report)
            error.__context__ = sys.exception()  # torch restores the error, which does not set it as `raise` does
        else:
            try:
                warnings.warn_explicit(report.text, RaceWarning, report.here.place.file or "?", report.here.place.line)
            except Warning as warning:  # the user's filter says that it is an error
                error = warning
        if error is None:
            return None
        errors: list[Exception] | None = getattr(self._thread, "errors", None)
        if errors is not None:
            errors[:] = [error]
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(error))  # the reference that native code gets
        return id(error)


def is_on() -> bool:
    """Return whether the detector is on."""
    return _detector.is_on()


def connect(native: ctypes.CDLL) -> None:
    """Use the detector of a loaded library. It is off at first."""
    _detector.connect(native)


def set_mode(mode: Mode) -> None:
    """Turn the detector on or off. When you turn it on, it knows nothing about earlier operations.

    Raises:
        UsageError: There is no such mode, or there are no virtual devices.
    """
    if mode not in _MODES:
        raise UsageError(f'races must be "off", "warn" or "raise", not {mode!r}')
    _detector.native.pxd_races_set_mode(_MODES.index(mode))


@contextlib.contextmanager
def races_mode(mode: Mode) -> Iterator[None]:
    """Turn the detector on or off for a `with` block: "off", "warn" or "raise".

    Raises:
        UsageError: There is no such mode, or there are no virtual devices.
        RaceError: The host used pinned memory before a copy was done, and no operation followed that could raise this.
    """
    before = _MODES[_detector.native.pxd_races_mode()]
    set_mode(mode)
    try:
        yield
        _detector.call("pxd_races_take_unraised")
    finally:
        set_mode(before)


def seen() -> list[RaceReport]:
    """Return the races found so far, at most 1000. A pair of lines that only caused a warning is listed once.

    Raises:
        UsageError: There are no virtual devices.
    """
    reports: list[RaceReport] = []
    while (text := _detector.native.pxd_races_seen(len(reports))) is not None:
        reports.append(_read(text))
    return reports


def clear() -> None:
    """Forget the races found so far, and everything that was done to memory.

    Raises:
        UsageError: There are no virtual devices.
    """
    _detector.native.pxd_races_clear()


def begin_collective(reads: Sequence[Tensor], writes: Sequence[Tensor], *, group_number: int, operation: str) -> int:
    """Let a collective, on a stream of its own, wait for the current stream; return a ticket for it.

    Args:
        group_number: Tells groups apart: its collectives come one after the other.

    Raises:
        RaceError: Another stream is not done with a tensor.
    """
    tensors = [*((tensor, False) for tensor in reads), *((tensor, True) for tensor in writes)]
    accesses = (_NativeAccess * len(tensors))(*(_access_of(tensor, is_write) for tensor, is_write in tensors))
    device = tensors[0][0].device.index
    stream = _detector.native.pxd_current_stream(device)
    name = operation.encode()
    return int(_detector.call("pxd_races_begin_collective", device, stream, accesses, len(tensors), group_number, name))


def wait_collective(ticket: int, device: int) -> None:
    """Let the current stream of a device wait for a collective."""
    native = _detector.native
    native.pxd_races_wait_collective(ticket, device, native.pxd_current_stream(device))


def _access_of(tensor: Tensor, is_write: bool) -> _NativeAccess:
    dims = ctypes.c_int64 * tensor.dim()
    start = tensor.untyped_storage().data_ptr()
    lo = start + tensor.storage_offset() * tensor.element_size()
    hi = lo + (tensor.element_size() if tensor.numel() else 0)  # the native side looks at sizes and strides
    name = str(tensor.dtype).removeprefix("torch.").encode()
    sizes, strides = dims(*tensor.shape), dims(*tensor.stride())
    return _NativeAccess(start, lo, hi, sizes, strides, name, tensor.dim(), tensor.element_size(), is_write)


def _read(text: bytes) -> RaceReport:
    facts = json.loads(text.decode(errors="replace"))
    freed = RacePlace(**facts["freed"]) if "freed" in facts else None
    return RaceReport(facts["kind"], facts["text"], _side_of(facts["here"]), _side_of(facts["earlier"]), freed)


def _side_of(facts: dict[str, Any]) -> RaceSide:
    return RaceSide(**{**facts, "place": RacePlace(**facts["place"])})


def _error_of(report: RaceReport) -> RaceError:
    error = RaceError(report.text, operation=report.here.operation)
    error.device = report.earlier.device
    error.first_operation, error.first_stream = report.earlier.operation, report.earlier.stream
    error.second_operation, error.second_stream = report.here.operation, report.here.stream
    error.first_line, error.second_line = _line_of(report.earlier.place), _line_of(report.here.place)
    return error


def _line_of(place: RacePlace) -> str:
    return str(place) if place.file else ""


def _hidden_files() -> list[str]:
    """Return beginnings of file names. A report shows the line that called into such a file instead."""
    standard = sysconfig.get_paths()["stdlib"]
    callers = ["threading.py", "contextlib.py", "functools.py", "ctypes/", "concurrent/", "asyncio/", "warnings.py"]
    packages = [Path(torch.__file__).parent, Path(__file__).parent.parent]
    return [*(f"{package}{os.sep}" for package in packages), *(f"{standard}/{name}" for name in callers), "<frozen "]


_int, _int64 = ctypes.c_int, ctypes.c_int64
_SIGNATURES: tuple[tuple[str, object, list[object]], ...] = (
    ("pxd_races_connect", None, [_Report]),
    ("pxd_races_hide", None, [ctypes.c_char_p]),
    ("pxd_races_set_mode", None, [_int]),
    ("pxd_races_mode", _int, []),
    ("pxd_races_clear", None, []),
    ("pxd_races_seen", ctypes.c_char_p, [_int64]),
    ("pxd_races_take_unraised", None, []),
    (
        "pxd_races_begin_collective",
        ctypes.c_uint64,
        [_int, _int64, ctypes.POINTER(_NativeAccess), _int64, _int64, ctypes.c_char_p],
    ),
    ("pxd_races_wait_collective", None, [ctypes.c_uint64, _int, _int64]),
)

_detector = _Detector()  # one for this process, as the native detector is
