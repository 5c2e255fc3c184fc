"""Events like "phalanx:all_reduce" in torch's profiler, with the tensors' shapes; nothing when no profiler runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch

from phalanx.torch_backend.untyped import autograd

is_enabled = autograd._profiler_enabled


class CommsRecorder(Protocol):
    """Says more of an operation than its name, where some backend's users are used to it."""

    def begin(self, event: str, inputs: Sequence[torch.Tensor], result: Sequence[Any], sequence: int) -> object:
        """Begin the record of an operation's start."""

    def end(self, record: object) -> None:
        """End it, on the same thread."""


class Recording:
    """An event under way; none when no profiler runs.

    Use as a context manager around the start of an operation: what can't even be started ends the event.
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
        """Say more of it."""
        if self._handle is not None:
            self._comms, self._record = comms, comms.begin(event, tensors, result, sequence)

    def __enter__(self) -> Recording:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if self._comms is not None:
            self._comms.end(self._record)
        if kind is not None:
            self.finish()

    @property
    def is_open(self) -> bool:
        """Whether somebody has to finish it."""
        return self._handle is not None

    def finish(self) -> None:
        """End it. The profiler takes an event that ends on another thread for an asynchronous one."""
        handle, self._handle = self._handle, None
        if handle is not None:
            autograd._record_function_with_args_exit(handle)
