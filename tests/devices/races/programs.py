"""Random programs of streams as data, run by our detector and by torch's own sanitizer of CUDA."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from torch.cuda._sanitizer import EventHandler, UnsynchronizedAccessError

import phalanx.virtual_gpus

NUM_STREAMS, NUM_EVENTS, NUM_TENSORS = 4, 3, 3
_TENSOR_BYTES = 64


@dataclass(frozen=True)
class Range:
    """Bytes of a tensor."""

    tensor: int
    lo: int = 0
    hi: int = _TENSOR_BYTES

    @property
    def block(self) -> int:
        return 4096 * (self.tensor + 1)


@dataclass(frozen=True)
class Launch:
    stream: int
    reads: tuple[Range, ...]
    writes: tuple[Range, ...]


@dataclass(frozen=True)
class Sync:
    """What orders: one of record, wait, host_waits_for_stream, host_waits_for_event, host_waits_for_device, forget."""

    what: str
    stream: int = 0
    event: int = 0


@dataclass(frozen=True)
class Free:
    tensor: int


Program = Sequence[Launch | Sync | Free]
Race = tuple[int, int]  # tensor, the stream of the earlier access


class _Touched(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_uint64) for name in ("block", "lo", "hi")),
        *((name, ctypes.c_int32) for name in ("tensor", "is_write")),
    ]


class OurDetector:
    """The native detector, built alone."""

    def __init__(self, folder: Path) -> None:
        headers = Path(phalanx.virtual_gpus.__file__).parent / "native"
        source, library = Path(__file__).with_name("detector_alone.cpp"), folder / "detector.so"
        command = ["g++", "-std=c++20", "-O1", "-shared", "-fPIC", f"-I{headers}", str(source), "-o", str(library)]
        subprocess.run(command, check=True, timeout=300)
        self._native = ctypes.CDLL(str(library))
        for name in ("launch", "tensor_of", "earlier_stream_of"):
            getattr(self._native, name).restype = ctypes.c_int64

    def run(self, program: Program) -> list[set[Race]]:
        """Return the races of each launch."""
        self._native.start()
        return [self._launch(step) for step in program if self._is_launch(step) and isinstance(step, Launch)]

    def _is_launch(self, step: Launch | Sync | Free) -> bool:
        if isinstance(step, Free):
            self._native.freed(ctypes.c_uint64(Range(step.tensor).block))
        elif isinstance(step, Sync):
            self._sync(step)
        return isinstance(step, Launch)

    def _sync(self, step: Sync) -> None:
        stream, event = ctypes.c_int64(step.stream), ctypes.c_int64(step.event + 1)
        arguments = {
            "record": (event, stream),
            "wait": (stream, event),
            "forget_event": (event,),
            "host_waits_for_stream": (stream,),
            "host_waits_for_event": (event,),
            "host_waits_for_device": (),
        }
        getattr(self._native, step.what)(*arguments[step.what])

    def _launch(self, step: Launch) -> set[Race]:
        ranges = [*((r, False) for r in step.reads if r not in step.writes), *((r, True) for r in step.writes)]
        touched = (_Touched * len(ranges))(
            *(_Touched(r.block, r.block + r.lo, r.block + r.hi, r.tensor, is_write) for r, is_write in ranges)
        )
        count = self._native.launch(ctypes.c_int64(step.stream), touched, ctypes.c_int64(len(ranges)))
        races = [ctypes.c_int64(number) for number in range(count)]
        return {(self._native.tensor_of(race), self._native.earlier_stream_of(race)) for race in races}


def run_torchs(program: Program) -> list[set[Race]]:
    """Run a program through torch's sanitizer: the races of each launch."""
    handler, races = EventHandler(), []
    for step in program:
        if isinstance(step, Launch):
            races.append(_launch_torchs(handler, step))
        elif isinstance(step, Free):
            _free_torchs(handler, Range(step.tensor).block)
        else:
            _sync_torchs(handler, step)
    return races


def _launch_torchs(handler: EventHandler, step: Launch) -> set[Race]:
    pointers = {r.block + r.lo: r.tensor for r in (*step.reads, *step.writes)}
    writes = {r.block + r.lo for r in step.writes}
    reads = {r.block + r.lo for r in step.reads} - writes
    aliases: dict[int, list[str]] = {pointer: [] for pointer in pointers}
    errors = handler._handle_kernel_launch(step.stream, reads, writes, set(), "op", aliases)
    found = [error for error in errors if isinstance(error, UnsynchronizedAccessError)]
    return {(pointers[error.data_ptr], error.previous_access.stream) for error in found}


def _free_torchs(handler: EventHandler, start: int) -> None:
    for pointer in range(start, start + _TENSOR_BYTES):
        if pointer in handler.tensors_accessed.accesses:
            handler._handle_memory_deallocation(pointer)


def _sync_torchs(handler: EventHandler, step: Sync) -> None:
    if step.what == "record":
        handler._handle_event_record(step.event, step.stream)
    elif step.what == "wait":
        handler._handle_event_wait(step.event, step.stream)
    elif step.what == "forget_event":
        handler._handle_event_deletion(step.event)
    elif step.what == "host_waits_for_stream":
        handler._handle_stream_synchronization(step.stream)
    elif step.what == "host_waits_for_event":
        handler._handle_event_synchronization(step.event)
    else:
        handler._handle_device_synchronization()
