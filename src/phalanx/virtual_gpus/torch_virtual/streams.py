"""Streams and events of virtual devices: torch.Stream and torch.Event that start on the current virtual device."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Self

import torch

from phalanx.virtual_gpus.torch_virtual.indices import DEVICE_TYPE, AnyDevice, Indices, current_index, index_named

# The order is from low to high priority, as in CUDA: a smaller number is a higher priority.
LEAST_PRIORITY, GREATEST_PRIORITY = 0, -1


class Stream(torch.Stream):
    """A queue of work on one virtual device, by default on the current one."""

    def __new__(cls, device: AnyDevice = None, priority: int = 0, **handle: Any) -> Self:
        """Make a new stream, or one for a handle (stream_id, device_index, device_type)."""
        if handle:
            return super().__new__(cls, priority=priority, **handle)
        place = torch.device(DEVICE_TYPE, index_named(device))
        return super().__new__(cls, device=place, priority=max(GREATEST_PRIORITY, min(LEAST_PRIORITY, priority)))

    def __init__(self, *_: Any, **__: Any) -> None:
        # torch.Stream is complete after __new__.
        pass

    @staticmethod
    def priority_range() -> tuple[int, int]:
        """Return the least and the greatest priority."""
        return LEAST_PRIORITY, GREATEST_PRIORITY

    def __repr__(self) -> str:
        return f"torch.{DEVICE_TYPE}.Stream(device={self.device}, stream_id={self.stream_id})"


class _EventType(type):
    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, torch.Event) and instance.device.type == DEVICE_TYPE


class Event(metaclass=_EventType):
    """A mark in a stream of a virtual device.

    It makes a torch.Event, because torch's streams and elapsed_time() accept no subclass.
    """

    def __new__(  # type: ignore[misc]  # the class is a name for events of one device type
        cls, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False
    ) -> torch.Event:
        """Make an event that belongs to the device of the stream it is first recorded on."""
        return torch.Event(DEVICE_TYPE, enable_timing=enable_timing, blocking=blocking, interprocess=interprocess)


class StreamContext:
    """Makes a stream and its device current inside a block; None changes nothing."""

    def __init__(self, stream: torch.Stream | None) -> None:
        self.stream = stream
        self._before: list[tuple[int, torch.Stream]] = []

    def __enter__(self) -> None:
        if self.stream is not None:
            # A list, because the same context may be entered again inside the block.
            self._before.append((current_index(), torch.accelerator.current_stream(self.stream.device)))
            torch.accelerator.set_stream(self.stream)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.stream is not None:
            device_index, stream = self._before.pop()
            torch.accelerator.set_stream(stream)
            torch.accelerator.set_device_index(device_index)


class Streams:
    """The stream functions of torch.virtual."""

    def __init__(self, indices: Indices) -> None:
        self._indices = indices

    def current_stream(self, device: AnyDevice = None) -> Stream:
        """Return the current stream of a device in this thread."""
        return _wrapped(torch.accelerator.current_stream(self._indices.of(device)))

    def default_stream(self, device: AnyDevice = None) -> Stream:
        """Return the default stream of a device."""
        handle = self.current_stream(device)
        return Stream(stream_id=0, device_index=handle.device_index, device_type=handle.device_type)

    def set_stream(self, stream: torch.Stream | None) -> None:
        """Make a stream and its device current."""
        if stream is not None:
            torch.accelerator.set_stream(stream)

    def stream(self, stream: torch.Stream | None) -> StreamContext:
        """Return a context in which a stream and its device are current."""
        return StreamContext(stream)


def _wrapped(stream: torch.Stream) -> Stream:
    return Stream(stream_id=stream.stream_id, device_index=stream.device_index, device_type=stream.device_type)
