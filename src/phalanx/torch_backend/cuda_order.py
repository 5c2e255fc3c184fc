"""Collectives between the streams of real CUDA devices.

The engine puts an operation behind the caller's current stream itself, and calls it done when its data is complete on
the device. So whoever has waited for it on the host may use the data on any stream, and nothing else needs an order.

Nor does anybody have to call record_stream(): the engine holds the tensors of an operation until it is done, and then
no stream but the program's own is at work on their memory. torch may give it to others at once.
"""

from __future__ import annotations

import atexit
import functools
import os
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from phalanx.groups.pending import PendingOperations
from phalanx.groups.stream_order import PendingOperation, order_of, orders
from phalanx.torch_backend.pending_futures import pending_futures

# What torch.cuda.synchronize and torch.accelerator.synchronize call, whoever has imported them.
_SYNCHRONIZING = ("_cuda_synchronize", "_accelerator_synchronizeDevice")


class CudaStreamOrder(PendingOperations):
    """The order of this process's GPUs. Threads may share it."""

    runs_at_once = False

    def __init__(self) -> None:
        super().__init__()
        self._is_joined = False

    def launch(self, reads: Sequence[Tensor], writes: Sequence[Tensor], *, operation: str, lane: int) -> object:
        """Return no ticket: the engine sees to the streams."""
        return None

    def wait(self, ticket: object) -> None:
        """Do nothing: the data is there for every stream."""

    def finish_stream(self) -> None:
        """Block until the current stream is done; a process that has not used CUDA is not made to."""
        if torch.cuda.is_initialized():
            torch.cuda.current_stream().synchronize()

    def started(self, operation: PendingOperation, *, owner: object) -> None:
        """Note an operation under way. From the first one on, torch.cuda.synchronize() waits for such too."""
        if not self._is_joined:
            self._is_joined = True
            for name in filter(torch._C.__dict__.__contains__, _SYNCHRONIZING):
                setattr(torch._C, name, self._joined(getattr(torch._C, name)))
        super().started(operation, owner=owner)

    def _joined(self, synchronize: Callable[..., Any]) -> Callable[..., Any]:
        """Make the end of a device's work that of its collectives as well, as it is with NCCL's.

        Streams and events are left alone: there NCCL's collectives have to be waited for too.
        """

        @functools.wraps(synchronize)
        def synchronize_with_collectives(*args: Any) -> Any:
            pending_futures.await_all()
            self.finish_pending()
            result = synchronize(*args)
            self.raise_failure()
            return result

        return synchronize_with_collectives


def serve_cuda() -> None:
    """Have groups serve tensors of real GPUs, if this torch can have some. Virtual ones keep the name they have."""
    if torch.version.cuda is None or order_of("cuda") is not None:
        return
    order = CudaStreamOrder()
    os.register_at_fork(after_in_child=order.forget)
    atexit.register(order.end)
    orders("cuda", order)
