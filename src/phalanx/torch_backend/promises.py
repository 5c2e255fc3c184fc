"""A future that Python code has got while its collective is under way.

Its callbacks run when the collective is over, on the thread that completes futures, and may start collectives of their
own. All ranks have to start theirs in one order, whatever takes how long. So there is one such future at a time, and
whoever starts a collective, or asks for the next future, lets its callbacks run first: a hook of DDP has its bucket on
the way while the backward pass goes on to the next one.
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


class Promises:
    """Whether there is one in this process. Threads may share it."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self.is_open = False

    def give(self, future: torch.futures.Future[Any], work: Work, completer: Completer, device: torch.device) -> bool:
        """Complete a future, with None, and run its callbacks when the operation has ended, well or not.

        Callbacks run as the caller would run them: with the same device, and gradients recorded or not.

        Returns:
            False if there is another: then this one is left alone.
        """
        with self._changed:
            if self.is_open:
                return False
            self.is_open = True
        has_gradients, is_inference = torch.is_grad_enabled(), torch.is_inference_mode_enabled()

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
                self._close()

        try:
            completer.when_done(work, keep)
        except BaseException:  # no thread can be started
            self._close()
            raise
        return True

    def _close(self) -> None:
        with self._changed:
            self.is_open = False
            self._changed.notify_all()

    def await_all(self) -> None:
        """Block until there is none. A callback need not wait: the one future there is is its own."""
        if self.is_open and not is_completing():
            with self._changed:
                self._changed.wait_for(lambda: not self.is_open)

    def forget(self) -> None:
        """Forget it, in a process that was forked."""
        self._changed = threading.Condition()
        self.is_open = False


promises = Promises()
os.register_at_fork(after_in_child=promises.forget)
