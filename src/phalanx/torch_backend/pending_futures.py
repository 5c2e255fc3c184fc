"""Futures that Python code has got while their collectives are under way.

Their callbacks run when the collective is over, on the thread that completes futures, and may start collectives of
their own. All ranks have to start theirs in one order, whatever takes how long. So a thread of the program has one such
future at a time, and when it starts a collective, or asks for the next future, it lets the callbacks run first: a hook
of DDP has its bucket on the way while the backward pass goes on to the next one.
"""

from __future__ import annotations

import logging
import os
import threading
from typing import Any

import torch

from phalanx.collectives import Work
from phalanx.torch_backend.completion import Completer, is_completing

_log = logging.getLogger("phalanx")


class PendingFutures:
    """Those of this process. Threads may share it.

    Attributes:
        open: The threads that have got a future whose callbacks have not run, with what tells it from others.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()  # guards `open`, which may be looked at without
        self.open: dict[int, object] = {}

    def give(self, future: torch.futures.Future[Any], work: Work, completer: Completer) -> bool:
        """Complete a future, with None, and run its callbacks when the operation has ended, well or not.

        Callbacks run as the caller would run them: with the same device, and gradients recorded or not.

        Returns:
            False if the calling thread has another: then this one is left alone.
        """
        thread, token = threading.get_ident(), object()
        device, has_gradients = torch.cuda.current_device(), torch.is_grad_enabled()
        is_inference = torch.is_inference_mode_enabled()

        def keep() -> None:
            try:
                with (
                    torch.inference_mode(is_inference),
                    torch.set_grad_enabled(has_gradients),
                    torch.cuda.device(device),
                ):
                    future.set_result(None)
            except Exception:  # of CUDA: the operation has probably failed too, as whoever waits will hear
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
            completer.when_done(work, keep)
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
        """Block until the calling thread has none. A callback need not wait: it is of the one future there is."""
        thread = threading.get_ident()
        if thread in self.open:
            with self._changed:
                self._changed.wait_for(lambda: thread not in self.open)

    def await_all(self) -> None:
        """Block until no thread has one, except in a callback."""
        if self.open and not is_completing():
            with self._changed:
                self._changed.wait_for(lambda: not self.open)

    def forget(self) -> None:
        """Forget all of them, in a process that was forked."""
        self._changed = threading.Condition()
        self.open = {}


pending_futures = PendingFutures()
os.register_at_fork(after_in_child=pending_futures.forget)
