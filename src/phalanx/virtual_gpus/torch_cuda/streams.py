"""The classes below torch.cuda.Stream and torch.cuda.Event, and which stream is current.

A virtual stream has no address. Here torch's `cuda_stream` is a number made from its device and its id; 0 is the
default stream of the current device, as in CUDA.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from phalanx.patches import Names
from phalanx.virtual_gpus.torch_cuda.ordinals import checked
from phalanx.virtual_gpus.torch_cuda.refusals import refusal

if TYPE_CHECKING:
    from phalanx.virtual_gpus.library import Library

_CUDA = 1  # torch's number for the device type
_HIGHEST_PRIORITY = -3


def handle_of(device: int, stream: int) -> int:
    """Return the number of a stream for use outside of torch."""
    return (device << 32) | stream if stream else 0


def stream_of(library: Library, handle: int, device: int) -> tuple[int, int]:
    """Return the device and the id of the stream with this number; for 0 the default stream of the given device.

    Raises:
        RuntimeError: No virtual GPU has such a stream.
    """
    if handle == 0:
        return device, 0
    if not library.has_stream(handle >> 32, handle & 0xFFFFFFFF):
        raise RuntimeError(
            f"{handle:#x} is no stream of a virtual GPU: a stream made by another library is not known here. "
            "Make it with torch.cuda.Stream()."
        )
    return handle >> 32, handle & 0xFFFFFFFF


def names(library: Library) -> Names:
    """Return what torch.cuda needs for streams and events."""
    num_devices = library.num_devices

    def current_stream(device: int) -> tuple[int, int, int]:
        return library.current_stream(checked(device, num_devices)), device, _CUDA

    def default_stream(device: int) -> tuple[int, int, int]:
        return 0, checked(device, num_devices), _CUDA

    def current_raw_stream(device: int) -> int:
        return handle_of(device, library.current_stream(checked(device, num_devices)))

    def stream_from_external(handle: int, device: int) -> tuple[int, int, int]:
        device_of_stream, stream = stream_of(library, handle, checked(device, num_devices))
        return stream, device_of_stream, _CUDA

    def set_stream(stream_id: int, device_index: int, device_type: int = _CUDA) -> None:
        library.set_device(checked(device_index, num_devices))
        library.set_stream(device_index, stream_id)

    return {
        "torch._C._CudaStreamBase": _stream_base(library),
        "torch._C._CudaEventBase": _event_base(library),
        "torch._C._cuda_getCurrentStream": current_stream,
        "torch._C._cuda_getDefaultStream": default_stream,
        "torch._C._cuda_getCurrentRawStream": current_raw_stream,
        "torch._C._cuda_getStreamFromExternal": stream_from_external,
        "torch._C._cuda_setStream": set_stream,
    }


def _stream_base(library: Library) -> type[torch.Stream]:
    class _StreamBase(torch.Stream):
        """A stream of a virtual GPU; torch.cuda.Stream is derived from it."""

        def __new__(
            cls,
            priority: int = 0,
            stream_id: int = 0,
            device_index: int | None = None,
            device_type: int = _CUDA,
            stream_ptr: int | None = None,
        ) -> Any:
            if stream_ptr is not None:
                device_index, stream_id = stream_of(library, stream_ptr, library.current_device())
            if device_index is not None:
                known: dict[str, int] = {"stream_id": stream_id, "device_index": device_index, "device_type": _CUDA}
                return torch.Stream.__new__(cls, **known)
            here = torch.device("cuda", library.current_device())
            return torch.Stream.__new__(cls, device=here, priority=max(_HIGHEST_PRIORITY, min(0, priority)))

        def __init__(self, *_args: Any, **_options: Any) -> None:
            pass  # torch.Stream.__init__ would refuse the arguments of __new__

        @property
        def cuda_stream(self) -> int:
            return handle_of(self.device_index, self.stream_id)

        @property
        def priority(self) -> int:
            return library.stream_priority(self.stream_id)

        @staticmethod
        def priority_range() -> tuple[int, int]:
            return 0, _HIGHEST_PRIORITY

    return _StreamBase


def _event_base(library: Library) -> type[torch.Event]:
    class _EventBase(torch.Event):
        """An event of a virtual GPU; torch.cuda.Event is derived from it."""

        _is_timed: bool

        def __new__(
            cls,
            enable_timing: bool = False,
            blocking: bool = False,
            interprocess: bool = False,
            external: bool = False,
        ) -> Any:
            event = torch.Event.__new__(
                cls, device="cuda", enable_timing=enable_timing, blocking=blocking, interprocess=interprocess
            )
            event._is_timed = enable_timing
            return event

        def __init__(self, *_args: Any, **_options: Any) -> None:
            pass  # torch.Event.__init__ would refuse the arguments of __new__

        @property
        def device(self) -> Any:  # type: ignore[override]
            """The device of the stream that it was recorded on; None before."""
            return torch.Event.device.__get__(self) if self.event_id else None

        @property
        def cuda_event(self) -> int:
            return self.event_id

        def elapsed_time(self, end_event: Any) -> float:  # torch.Event.elapsed_time refuses derived classes
            if not (self._is_timed and end_event._is_timed):
                raise ValueError("Both events must be created with argument 'enable_timing=True'.")
            if not (self.event_id and end_event.event_id):
                raise ValueError("Both events must be recorded before calculating elapsed time.")
            return library.elapsed_ms(self.event_id, end_event.event_id)

        from_ipc_handle = classmethod(_not_shared)
        ipc_handle = _not_shared

    return _EventBase


_not_shared = refusal(
    "sharing a torch.cuda.Event with another process",
    "an event is known to its own process only",
    "use torch.distributed.barrier(), or an Event of torch.multiprocessing, between processes",
)
