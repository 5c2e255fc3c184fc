"""Futures of tensors that DDP's C++ reducer, its hooks and Python callers all accept.

C++ code gets a future that is completed later. So does Python code that asks for the future of a GPU's collective. Its
callbacks run on the thread that completes futures, and may start collectives of their own. All ranks have to start
their collectives in the same order, however long each one takes. So a thread of the program has at most one such future
at a time. When it starts a collective, or asks for the next future, it first waits for the callbacks of the earlier
future. Thus DDP's communication hook can send one bucket while the backward pass computes the next one.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Sequence
from typing import Any, cast

import torch

from phalanx.collectives import Work
from phalanx.diagnosis.retold_errors import remember
from phalanx.errors import PhalanxError
from phalanx.torch_backend.completion import Completer, is_completing

_log = logging.getLogger("phalanx")


class PendingFutures:
    """The pending futures that Python code of this process has. Threads may share it.

    Attributes:
        open: The threads that have a future whose callbacks have not run, each with a token of that future.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()  # guards `open`, which may be read without it
        self.open: dict[int, object] = {}

    def add(self, future: torch.futures.Future[Any], work: Work, completer: Completer) -> bool:
        """Complete a future with None when the operation has ended, with or without an error; its callbacks run then.

        Callbacks run with the caller's current device, gradient mode and inference mode.

        Returns:
            False if the calling thread has another pending future; then this one is not completed.
        """
        thread, token = threading.get_ident(), object()
        device, has_gradients = torch.cuda.current_device(), torch.is_grad_enabled()
        is_inference = torch.is_inference_mode_enabled()

        def complete() -> None:
            try:
                with (
                    torch.inference_mode(is_inference),
                    torch.set_grad_enabled(has_gradients),
                    torch.cuda.device(device),
                ):
                    future.set_result(None)
            except Exception:  # from CUDA: the operation has probably failed too, and a wait raises its error
                _log.exception("a future was completed without its device")
                if not future.done():
                    future.set_result(None)
            finally:
                self._close(thread, token)

        try:
            with self._changed:
                if thread in self.open:
                    return False
                self.open[thread] = token
            completer.when_done(work, complete)
        except BaseException:  # no thread can be started, or Ctrl-C
            self._close(thread, token)
            raise
        return True

    def _close(self, thread: int, token: object) -> None:
        with self._changed:
            if self.open.get(thread) is token:
                del self.open[thread]
                self._changed.notify_all()

    def await_own(self) -> None:
        """Block until the calling thread has no pending future. The thread of callbacks never has one."""
        thread = threading.get_ident()
        if thread in self.open:
            with self._changed:
                self._changed.wait_for(lambda: thread not in self.open)

    def await_all(self) -> None:
        """Block until no thread has a pending future; in a callback, return at once."""
        if self.open and not is_completing():
            with self._changed:
                self._changed.wait_for(lambda: not self.open)

    def forget(self) -> None:
        """Forget all pending futures, in a forked child."""
        self._changed = threading.Condition()
        self.open = {}


pending_futures = PendingFutures()
os.register_at_fork(after_in_child=pending_futures.forget)


def ready_future(tensors: list[Any], devices: Sequence[torch.device] = ()) -> torch.futures.Future[Any]:
    """Return a completed future.

    Args:
        tensors: Its value.
        devices: GPUs whose streams it puts in order: work of a callback runs there before work of a waiting caller.
    """
    if _needs_type(tensors):
        return cast("torch.futures.Future[Any]", torch._C.fork(_identity, tensors))
    future: torch.futures.Future[Any] = torch.futures.Future(devices=list(devices))
    future.set_result(tensors)
    return future


def _needs_type(tensors: list[Any]) -> bool:
    """Tell whether the future must come from torch._C.fork.

    DDP's built-in compression hook reads the value in C++, where only the value of such a future has the type "list of
    tensors". It takes ten times as long to make, so only the dtype that this hook produces gets one.
    """
    return any(isinstance(tensor, torch.Tensor) and tensor.dtype is torch.float16 for tensor in tensors)


def _identity(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    return tensors


def future_for_cpp(
    work: Work, tensors: list[Any], completer: Completer, devices: Sequence[torch.device] = ()
) -> torch.futures.Future[Any]:
    """Return a future for C++ code; it may be pending.

    Raises:
        PhalanxError: The operation has failed.
    """
    if _needs_type(tensors) or is_completing() or work.done():
        work.wait()
        return ready_future(tensors, devices)
    raw, future = _pending_future(work, tensors, devices)
    completer.when_done(work, lambda: raw.set_result(None))
    return future


def future_for_python(
    work: Work, tensors: list[Any], completer: Completer, devices: Sequence[torch.device]
) -> torch.futures.Future[Any]:
    """Return a future of a GPU's tensors for Python code; it may be the one pending future of the calling thread.

    Raises:
        PhalanxError: The operation has failed.
    """
    if not is_completing() and not work.done():
        raw, future = _pending_future(work, tensors, devices)
        if pending_futures.add(raw, work, completer):
            return future
    pending_futures.await_own()
    work.wait()
    return ready_future(tensors, devices)


def _pending_future(
    work: Work, tensors: list[Any], devices: Sequence[torch.device]
) -> tuple[torch.futures.Future[Any], torch.futures.Future[Any]]:
    """Return a future to complete with any value, and one that then completes with the tensors or the error."""
    raw: torch.futures.Future[Any] = torch.futures.Future(devices=list(devices))

    def deliver(_: torch.futures.Future[Any]) -> list[Any]:
        # Only Python would see set_exception(); C++ would take the exception for the tensors. Both see an exception
        # that a callback raises, but C++ keeps only its text.
        error = work.exception()
        if error is not None:
            if isinstance(error, PhalanxError):
                remember(error)
            raise error
        return tensors

    return raw, raw.then(deliver)
