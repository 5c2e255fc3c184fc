"""The order of collectives and the streams of real CUDA devices.

The engine itself runs an operation after the work on the caller's current stream. An operation has ended when its data
is complete on the device. So after a wait on the host, the program may use the data on any stream.

No call of record_stream() is necessary: the engine holds the tensors of an operation until it has ended, and does not
use their memory after that.
"""

from __future__ import annotations

import atexit
import functools
import os
from collections.abc import Callable
from typing import Any

import torch

from phalanx.groups.stream_order import PendingOperation, StreamOrder, order_of, orders
from phalanx.patches import Patches
from phalanx.torch_backend.future import pending_futures

# The functions behind torch.cuda.synchronize and torch.accelerator.synchronize.
_SYNCHRONIZING = ("torch._C._cuda_synchronize", "torch._C._accelerator_synchronizeDevice")


class CudaStreamOrder(StreamOrder):
    """The order of this process's GPUs. Threads may share it."""

    runs_at_once = False

    def __init__(self) -> None:
        super().__init__()
        self._patches = Patches("the first asynchronous operation on a real GPU starts")

    def finish_stream(self) -> None:
        """Block until the current stream is done; do nothing in a process that has not used CUDA."""
        if torch.cuda.is_initialized():
            torch.cuda.current_stream().synchronize()

    def started(self, operation: PendingOperation, *, owner: object) -> None:
        """Add a running operation. From the first one on, torch.cuda.synchronize() also waits for operations."""
        if not self._patches:
            self.join_synchronize()
        super().started(operation, owner=owner)

    def join_synchronize(self) -> None:
        """Make torch.cuda.synchronize() wait for running operations."""
        for path in _SYNCHRONIZING:
            self._patches.wrap([path], self._joined, "synchronizing waits for collectives too, as with NCCL")

    def _joined(self, synchronize: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a function that synchronizes a device, so that it also waits for collectives, as with NCCL.

        Streams and events are not changed: with NCCL, synchronizing them does not wait for collectives either.
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
    """Make groups serve tensors of real GPUs, if this torch supports them and "cuda" does not mean virtual GPUs."""
    if torch.version.cuda is None or order_of("cuda") is not None:
        return
    order = CudaStreamOrder()
    os.register_at_fork(after_in_child=order.forget)
    atexit.register(order.end)
    orders("cuda", order)
