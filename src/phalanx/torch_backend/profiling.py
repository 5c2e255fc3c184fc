"""Events like "phalanx:all_reduce" in torch's profiler, with the tensors' shapes; nothing when no profiler runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from phalanx.torch_backend.untyped import autograd

is_enabled = autograd._profiler_enabled


class Recording:
    """An event under way."""

    def __init__(self, name: str, tensors: Sequence[torch.Tensor]) -> None:
        self._handle: Any = autograd._record_function_with_args_enter(name, *tensors)

    def finish(self) -> None:
        """End it. The profiler takes an event that ends on another thread for an asynchronous one."""
        handle, self._handle = self._handle, None
        if handle is not None:
            autograd._record_function_with_args_exit(handle)


@contextmanager
def record(backend_name: str, event: str, tensors: Sequence[torch.Tensor]) -> Iterator[Recording | None]:
    """Begin an event around the start of an operation; whoever sees the operation's end finishes it.

    An operation that can't even be started ends the event here.
    """
    if not is_enabled():
        yield None
        return
    recording = Recording(f"{backend_name}:{event}", tensors)
    try:
        yield recording
    except BaseException:
        recording.finish()
        raise
