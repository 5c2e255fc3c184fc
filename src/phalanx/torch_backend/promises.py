"""Futures that Python code has got while their operations are under way.

Their callbacks run when the operation is over, on the thread that completes futures, and may start collectives of their
own. All ranks have to start theirs in one order, whatever takes how long. So whoever starts a collective lets the
callbacks of those before it run first: a hook of DDP has its bucket on the way while the backward pass goes on to the
next one.
"""

from __future__ import annotations

import os
import threading
from typing import Any

import torch

from phalanx.collectives import Work
from phalanx.torch_backend.completion import Completer, is_completing


class Promises:
    """Those of this process that have not been kept yet. Threads may share it."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self.num_open = 0
        self._streams: dict[torch.device, torch.cuda.Stream] = {}

    def give(self, future: torch.futures.Future[Any], work: Work, completer: Completer, device: torch.device) -> None:
        """Complete a future, with None, and run its callbacks when the operation has ended, well or not.

        The data is there for every stream then, so that callbacks need not wait for what the program has given its own
        stream since.

        Args:
            device: The one that is current for its callbacks.
        """
        with self._changed:
            self.num_open += 1

        def keep() -> None:
            try:
                with torch.cuda.stream(self._idle_stream(device)):
                    future.set_result(None)
            finally:
                with self._changed:
                    self.num_open -= 1
                    self._changed.notify_all()

        completer.when_done(work, keep)

    def _idle_stream(self, device: torch.device) -> torch.cuda.Stream:
        if device not in self._streams:
            self._streams[device] = torch.cuda.Stream(device)
        return self._streams[device]

    def await_all(self) -> None:
        """Block until there is none left. A callback has nothing to wait for: those before it have run."""
        if not is_completing():
            with self._changed:
                self._changed.wait_for(lambda: self.num_open == 0)

    def forget(self) -> None:
        """Forget all of them, in a process that was forked."""
        self._changed = threading.Condition()
        self.num_open = 0
        self._streams = {}


promises = Promises()
os.register_at_fork(after_in_child=promises.forget)
