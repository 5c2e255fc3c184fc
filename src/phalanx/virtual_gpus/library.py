"""The native part of virtual devices as Python calls it.

It calls plain C functions through ctypes, which releases the GIL meanwhile. So other threads run while one waits for a
device.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable, Iterator, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path

from phalanx.errors import UsageError

_Wait = ctypes.CFUNCTYPE(None, ctypes.c_int)


class _NativeComms(ctypes.Structure):
    _fields_ = [
        *[(name, ctypes.c_char_p) for name in ("group", "description", "collective")],
        *[(name, ctypes.c_int) for name in ("rank", "size", "first_rank", "rank_stride")],
        ("sequence", ctypes.c_int64),
        ("is_message", ctypes.c_int),
        ("is_async", ctypes.c_int),
    ]


@dataclass(frozen=True)
class Comms:
    """A collective, as torch's profiler describes it; the fields of the native structure, in its order.

    Attributes:
        group: The group's name.
        description: What the group is for; "default_pg" for the default one.
        collective: Its name, such as "allreduce".
        rank: This rank in the group.
        size: How many ranks it has.
        first_rank: The world's number of the group's first rank.
        rank_stride: The distance between the group's ranks in the world, or 0 if it varies.
        sequence: The number of the operation in the group.
        is_message: Whether it is a send or a receive.
        is_async: Whether the caller continues meanwhile.
    """

    group: str
    description: str
    collective: str
    rank: int
    size: int
    first_rank: int = 0
    rank_stride: int = 1
    sequence: int = 0
    is_message: bool = False
    is_async: bool = False


class Block(ctypes.Structure):
    """A piece of a device's memory in use.

    Attributes:
        address: Where it begins.
        size_bytes: The bytes that it takes from the device.
        requested_bytes: The bytes that were asked for.
        stream: The stream that was current when it was allocated.
    """

    _fields_ = [(name, ctypes.c_int64) for name in ("address", "size_bytes", "requested_bytes", "stream")]
    address: int
    size_bytes: int
    requested_bytes: int
    stream: int


class Library:
    """The loaded native part. Threads may share it."""

    def __init__(self, path: Path) -> None:
        self._native = ctypes.CDLL(str(path))
        self._waiting: object = None  # keeps a function alive that native code calls
        self.num_devices = 0
        self.memory_bytes = 0  # of each device
        self._fractions: dict[int, float] = {}
        for name, result, arguments in _SIGNATURES:
            function = getattr(self._native, name)
            function.restype, function.argtypes = result, arguments

    def set_up(self, is_cuda: bool, num_devices: int, memory_bytes: int) -> None:
        """Register the devices with torch; once per process.

        Raises:
            RuntimeError: torch refuses them.
        """
        self._check(self._native.pxd_set_up(int(is_cuda), num_devices, memory_bytes))
        self.num_devices, self.memory_bytes = num_devices, memory_bytes

    def use_driver(self, path: str) -> None:
        """Take the memory of devices from this CUDA driver from now on, so that other processes can open it.

        Raises:
            RuntimeError: It is no driver.
        """
        self._check(self._native.pxd_use_driver(path.encode()))

    def current_device(self) -> int:
        """Return the calling thread's current device."""
        return int(self._native.pxd_current_device())

    def set_device(self, index: int) -> None:
        """Make a device the calling thread's current one.

        Raises:
            RuntimeError: There is none with this index.
        """
        self._check(self._native.pxd_set_device(index))

    def synchronize(self, device: int) -> None:
        """Wait until all streams of a device, and collectives under way on it, are done.

        Raises:
            RuntimeError: There is no such device.
        """
        self._check(self._native.pxd_synchronize(device))

    def current_stream(self, device: int) -> int:
        """Return the calling thread's current stream of a device; 0 is the default stream."""
        return int(self._native.pxd_current_stream(device))

    def set_stream(self, device: int, stream: int) -> None:
        """Make a stream the calling thread's current one of its device.

        Raises:
            RuntimeError: There is no such device or stream.
        """
        if not self.has_stream(device, stream):
            raise RuntimeError(f"there is no stream {stream} of virtual device {device}")
        self._native.pxd_set_stream(device, stream)

    def has_stream(self, device: int, stream: int) -> bool:
        """Return whether a device has a stream with this number."""
        return 0 <= device < self.num_devices and bool(self._native.pxd_has_stream(stream))

    def stream_priority(self, stream: int) -> int:
        """Return a stream's priority: 0, or a negative number for a higher priority."""
        return int(self._native.pxd_stream_priority(stream))

    def sleep(self, seconds: float) -> None:
        """Keep the current stream busy for some time."""
        self._native.pxd_sleep(seconds)

    def elapsed_ms(self, start: int, end: int) -> float:
        """Return the time between two recorded events, given by their native handles.

        Raises:
            RuntimeError: One is not recorded or not done, or they are on two devices.
        """
        result = ctypes.c_double()
        self._check(self._native.pxd_elapsed_ms(start, end, ctypes.byref(result)))
        return result.value

    def blocks(self) -> list[tuple[int, Block]]:
        """Return the memory in use on every device: each block, with the index of its device."""
        return [(device, block) for device in range(self.num_devices) for block in self._blocks_of(device)]

    def _blocks_of(self, device: int) -> list[Block]:
        room = 64
        while True:
            found = (Block * room)()
            count = int(self._native.pxd_blocks(device, found, room))
            if count <= room:
                return found[:count]
            room = 2 * count

    def set_memory_fraction(self, device: int, fraction: float) -> None:
        """Set which part of a device's memory may be used."""
        self._native.pxd_set_limit(device, int(fraction * self.memory_bytes))
        self._fractions[device] = fraction

    def memory_fraction(self, device: int) -> float:
        """Return which part of a device's memory may be used."""
        return self._fractions.get(device, 1.0)

    def empty_cache(self) -> None:
        """Count a call of empty_cache(); no memory is cached."""
        self._native.pxd_empty_cache()

    def resize_storage(self, storage: int, size_bytes: int) -> None:
        """Resize a storage, given by its address in torch; the contents that still fit are kept.

        Raises:
            RuntimeError: The device is full.
        """
        self._check(self._native.pxd_resize_storage(storage, size_bytes))

    @contextlib.contextmanager
    def exposed_generators(self) -> Iterator[None]:
        """Inside the block, let torch.Generator(device=...) on this thread return a device's default generator."""
        self._native.pxd_expose_generators(1)
        try:
            yield
        finally:
            self._native.pxd_expose_generators(0)

    def settle_autograd_threads(self) -> None:
        """Let torch's threads for backward release the objects that they hold. Call it at the end of the process."""
        self._native.pxd_settle_autograd_threads()

    def begin_comms(self, comms: Comms, inputs: Sequence[int], outputs: Sequence[int]) -> int | None:
        """Begin the profiler's record of a collective; pass the result to end_comms() on the same thread.

        Args:
            comms: The collective.
            inputs: Addresses of the tensors that it reads (`_cdata`).
            outputs: Addresses of the tensors that it writes.
        """
        facts = _NativeComms(*(each.encode() if isinstance(each, str) else each for each in astuple(comms)))
        given, made = (ctypes.c_void_p * len(inputs))(*inputs), (ctypes.c_void_p * len(outputs))(*outputs)
        record = self._native.pxd_begin_comms(ctypes.byref(facts), given, len(inputs), made, len(outputs))
        return None if record is None else int(record)

    def end_comms(self, record: int | None) -> None:
        """End such a record."""
        if record is not None:
            self._native.pxd_end_comms(record)

    def when_synchronizing(self, wait: Callable[[int], None]) -> None:
        """Register a function that is called with the device if operations are pending when it is synchronized."""
        self._waiting = _Wait(wait)
        self._native.pxd_when_synchronizing(self._waiting)

    def add_pending(self, change: int) -> None:
        """Change the number of pending operations outside the streams."""
        self._native.pxd_add_pending(change)

    @property
    def native(self) -> ctypes.CDLL:
        """The functions themselves."""
        return self._native

    def _check(self, code: int) -> None:
        if code != 0:
            raise RuntimeError(self._native.pxd_error().decode(errors="replace"))


_int, _int64, _pointer = ctypes.c_int, ctypes.c_int64, ctypes.c_void_p
_SIGNATURES: tuple[tuple[str, object, list[object]], ...] = (
    ("pxd_error", ctypes.c_char_p, []),
    ("pxd_set_up", _int, [_int, _int, _int64]),
    ("pxd_use_driver", _int, [ctypes.c_char_p]),
    ("pxd_current_device", _int, []),
    ("pxd_set_device", _int, [_int]),
    ("pxd_synchronize", _int, [_int]),
    ("pxd_current_stream", _int64, [_int]),
    ("pxd_set_stream", None, [_int, _int64]),
    ("pxd_has_stream", _int, [_int64]),
    ("pxd_stream_priority", _int, [_int64]),
    ("pxd_sleep", None, [ctypes.c_double]),
    ("pxd_elapsed_ms", _int, [_pointer, _pointer, ctypes.POINTER(ctypes.c_double)]),
    ("pxd_blocks", _int64, [_int, ctypes.POINTER(Block), _int64]),
    ("pxd_set_limit", None, [_int, _int64]),
    ("pxd_empty_cache", None, []),
    ("pxd_resize_storage", _int, [_pointer, _int64]),
    ("pxd_expose_generators", None, [_int]),
    ("pxd_settle_autograd_threads", None, []),
    (
        "pxd_begin_comms",
        _pointer,
        [ctypes.POINTER(_NativeComms), ctypes.POINTER(_pointer), _int, ctypes.POINTER(_pointer), _int],
    ),
    ("pxd_end_comms", None, [_pointer]),
    ("pxd_when_synchronizing", None, [_Wait]),
    ("pxd_add_pending", None, [ctypes.c_long]),
)

_loaded: list[Library] = []  # at most one: torch can't unload it


def load(path: Path) -> Library:
    """Load the native part, once for this process.

    Raises:
        OSError: It does not fit this torch.
    """
    if not _loaded:
        _loaded.append(Library(path))
    return _loaded[0]


def current() -> Library:
    """Return the loaded native part.

    Raises:
        UsageError: Virtual devices have not been set up.
    """
    if not _loaded or not _loaded[0].num_devices:
        raise UsageError("there are no virtual devices in this process; call phalanx.virtual_devices(8) first")
    return _loaded[0]
