"""Events like "phalanx:all_reduce" in torch's profiler, with the tensors' shapes; nothing when no profiler runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch

from phalanx.torch_backend.untyped import autograd

is_enabled = autograd._profiler_enabled


class CommsRecorder(Protocol):
    """Adds details of an operation to the profile, as the backend does that phalanx stands in for."""

    def begin(self, event: str, inputs: Sequence[torch.Tensor], result: Sequence[Any], sequence: int) -> object:
        """Begin the record of an operation's start."""

    def end(self, record: object) -> None:
        """End it, on the same thread."""


class ProfilerEvent:
    """A running event of the profiler; it does nothing if no profiler runs.

    Use it as a context manager around the start of an operation: if that raises, the event ends.
    """

    _comms: CommsRecorder | None = None
    _record: object = None

    def __init__(self, backend_name: str, event: str, tensors: Sequence[torch.Tensor]) -> None:
        self._handle: Any = None
        if is_enabled():
            self._handle = autograd._record_function_with_args_enter(f"{backend_name}:{event}", *tensors)

    def describe(
        self, comms: CommsRecorder, event: str, tensors: Sequence[torch.Tensor], result: Sequence[Any], sequence: int
    ) -> None:
        """Add details to the event."""
        if self._handle is not None:
            self._comms, self._record = comms, comms.begin(event, tensors, result, sequence)

    def __enter__(self) -> ProfilerEvent:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if self._comms is not None:
            self._comms.end(self._record)
        if kind is not None:
            self.finish()

    @property
    def is_open(self) -> bool:
        """Whether finish() has to be called."""
        return self._handle is not None

    def finish(self) -> None:
        """End it. The profiler shows an event that ends on another thread as asynchronous."""
        handle, self._handle = self._handle, None
        if handle is not None:
            autograd._record_function_with_args_exit(handle)
