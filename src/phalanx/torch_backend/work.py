"""A running operation as torch sees it.

C++ callers use only wait() and get_future(); the rest is for Python.
"""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

import torch

from phalanx.collectives import Work
from phalanx.torch_backend.call_options import read_timeout
from phalanx.torch_backend.caller import is_called_from_python
from phalanx.torch_backend.completion import Completer
from phalanx.torch_backend.future import future_for_cpp, ready_future
from phalanx.torch_backend.untyped import Work as WorkBase

NO_TIMEOUT = timedelta(0)


class FinishedWork(WorkBase):  # type: ignore[misc]
    """An operation that was over when the call returned."""

    # No __init__ here: without one, only that of C++ runs, which takes half the time.
    _result: list[Any]
    _source = -1

    @classmethod
    def of(cls, result: list[Any], source: int | None = None) -> FinishedWork:
        """Make one.

        Args:
            result: The tensors that it filled.
            source: The rank that sent the message, for a receive.
        """
        work = cls()
        work._result = result
        if source is not None:
            work._source = source
        return work

    def wait(self, timeout: timedelta = NO_TIMEOUT) -> bool:
        """Return at once."""
        return True

    def is_completed(self) -> bool:
        """Return True: it is done."""
        return True

    def is_success(self) -> bool:
        """Return True: it succeeded."""
        return True

    def exception(self) -> BaseException | None:
        """Return None: the call itself would have raised the exception."""
        return None

    def result(self) -> list[Any]:
        """Return the tensors it filled."""
        return self._result

    def synchronize(self) -> None:
        """Do nothing: there is no stream."""

    def block_current_stream(self) -> None:
        """Do nothing: there is no stream."""

    def source_rank(self) -> int:
        """Return which rank of the group a receive got its message from; -1 for anything else."""
        return self._source

    _source_rank = source_rank

    def get_future(self) -> torch.futures.Future[Any]:
        """Return a completed future of the tensors."""
        return ready_future(self._result)


class PendingWork(FinishedWork):
    """An operation that the engine runs in the background."""

    def __init__(self, work: Work, result: list[Any], completer: Completer) -> None:
        super().__init__()
        self._result = result
        self._work = work
        self._completer = completer
        self._future: torch.futures.Future[Any] | None = None
        self._start_s = time.monotonic()
        self._end_s: float | None = None

    def wait(self, timeout: timedelta = NO_TIMEOUT) -> bool:
        """Block until it is done.

        Raises:
            PhalanxError: It failed, or is not done in time.
        """
        self._work.wait(read_timeout(timeout))
        if self._end_s is None:
            self._end_s = time.monotonic()
        return True

    def is_completed(self) -> bool:
        """Tell whether it has ended, with or without an error."""
        return self._work.done()

    def is_success(self) -> bool:
        """Tell whether it has succeeded."""
        return self._work.done() and self._work.exception() is None

    def exception(self) -> BaseException | None:
        """Return why it failed; None while it runs or if it succeeded."""
        return self._work.exception()

    def result(self) -> list[Any]:
        """Return the tensors it fills; wait() first."""
        return self._result

    def synchronize(self) -> None:
        """Wait."""
        self.wait()

    def source_rank(self) -> int:
        """Return which rank of the group a receive got its message from; -1 before that."""
        ask = getattr(self._work, "source_rank", None)
        source = ask() if ask is not None else None
        return -1 if source is None else int(source)

    _source_rank = source_rank

    def _get_duration(self) -> float:
        return ((self._end_s or time.monotonic()) - self._start_s) * 1e3

    def get_future(self) -> torch.futures.Future[Any]:
        """Return a future of the tensors.

        Python code gets a completed one. Its callbacks then run at once, on its own thread, so that callbacks which
        start further collectives do so in the same order on every rank. DDP's reducer (C++) gets one that may be
        pending, so that communication overlaps with the backward pass.

        Raises:
            PhalanxError: The operation has failed already.
        """
        if self._future is None:
            if is_called_from_python("get_future"):
                self._work.wait()
                self._future = ready_future(self._result)
            else:
                self._future = future_for_cpp(self._work, self._result, self._completer)
        return self._future
