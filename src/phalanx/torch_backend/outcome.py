"""How an operation on a device ends, for all who may ask: the program, and whoever synchronizes the device.

On a GPU, synchronizing is a way to wait for a collective. So a failure that nobody waited for has to be found there.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any, cast

from phalanx.collectives import Timeout, Work
from phalanx.errors import ClosedError, PhalanxError
from phalanx.torch_backend.habits import Habits
from phalanx.torch_backend.lending import Loan
from phalanx.torch_backend.rules import translated


class Outcome:
    """An operation until it has ended, then how it did; a Work. Threads may share it."""

    def __init__(self, work: Work, habits: Habits, loans: Sequence[Loan] = ()) -> None:
        self._work: Work | None = work  # None once it has been seen to end
        self._habits = habits
        self._loans = loans
        self._number = habits.telling.started()
        self._error: PhalanxError | None = None
        self._source: int | None = None

    def wait(self, timeout_s: Timeout = None) -> None:
        """Block until it is done.

        Raises:
            PhalanxError: It failed, or is not done in time.
        """
        work = self._work
        if work is not None:
            try:
                work.wait(timeout_s)
            except PhalanxError as error:
                if not work.done() or work.exception() is None:  # only this wait has ended; NCCL would give up here
                    self._habits.telling.told()
                    raise translated(error, self._habits.rules) from error.__cause__
            self._end(work)
        if self._error is not None:
            self._habits.telling.told()
            raise translated(self._error, self._habits.rules) from self._error.__cause__

    def settle(self) -> None:
        """Block until it has ended, well or not; untold() has what there is to say. Its tensors are let go of."""
        work = self._work
        if work is not None:
            with contextlib.suppress(PhalanxError):
                work.wait()
            self._end(work)
        self._habits.recent.is_over(self)

    def _end(self, work: Work) -> None:
        self._error = cast("PhalanxError | None", work.exception())
        ask = getattr(work, "source_rank", None)
        self._source = ask() if ask is not None else None
        self._work = None
        for loan in self._loans:
            loan.end()

    def done(self) -> bool:
        """Tell whether it has ended, well or not."""
        work = self._work
        return work is None or work.done()

    def exception(self) -> BaseException | None:
        """Return why it failed; None while it runs or when it went well. Whoever asks has been told."""
        error = self._failure()
        if error is None:
            return None
        self._habits.telling.told()
        return translated(error, self._habits.rules)

    def untold(self) -> BaseException | None:
        """Return why it failed, if the program has not been told that the group fails. Does not wait."""
        error = self._failure() if self._number > self._habits.telling.num_told else None
        if error is None or isinstance(error, ClosedError):  # closed by this rank itself
            return None
        return translated(error, self._habits.rules)

    def tell(self) -> None:
        """Note that the program has been told."""
        self._habits.telling.told()

    def result(self) -> Any:
        """Wait; the tensors are with whoever started it.

        Raises:
            PhalanxError: It failed.
        """
        self.wait()

    def source_rank(self) -> int | None:
        """Return which rank a receive got its message from; None for anything else, or before that."""
        ask = getattr(self._work, "source_rank", None)
        return self._source if ask is None else ask()

    def _failure(self) -> PhalanxError | None:
        work = self._work
        if work is None:
            return self._error
        return cast("PhalanxError | None", work.exception()) if work.done() else None
