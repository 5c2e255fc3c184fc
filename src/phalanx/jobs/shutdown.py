"""Shutdown ranks step by step: each step is a signal, or none, and the time to follow it."""

from __future__ import annotations

import signal
import time
from collections import deque
from collections.abc import Iterable, Sequence

from phalanx.jobs.rank import Rank

AFTER_FAILURE = (None, signal.SIGTERM, signal.SIGKILL)  # first those that wait get an error of their own
WHEN_TIME_IS_UP = (signal.SIGTERM, signal.SIGKILL)


def after_signal(number: signal.Signals) -> tuple[signal.Signals, ...]:
    """Return the steps after a signal to the launcher: ranks get the same first."""
    gentle = (number,) if number is signal.SIGTERM else (number, signal.SIGTERM)
    return (*gentle, signal.SIGKILL)


class Shutdown:
    """Where we are with ending the ranks."""

    def __init__(self, grace_s: float) -> None:
        self._grace_s = grace_s
        self._steps: deque[signal.Signals | None] = deque()
        self._latest: signal.Signals | None = None
        self.due_at: float | None = None  # when to take the next step

    @property
    def has_begun(self) -> bool:
        """Whether ranks are being ended."""
        return self.due_at is not None or bool(self._steps)

    def begin(self, steps: Sequence[signal.Signals | None], ranks: Iterable[Rank]) -> None:
        """Take the first step; forget those of an ending that was under way."""
        self._steps = deque(steps)
        self._step(ranks)

    def look(self, ranks: Iterable[Rank]) -> None:
        """Take the next step if it is time."""
        if self.due_at is not None and time.monotonic() >= self.due_at:
            self._step(ranks)

    def catch_up(self, ranks: Iterable[Rank]) -> None:
        """Send the latest signal to ranks whose processes were not known when it was sent."""
        if self._latest is not None:
            for rank in ranks:
                rank.send(self._latest)

    def _step(self, ranks: Iterable[Rank]) -> None:
        if not self._steps:
            self.due_at = float("inf")
            return
        self._latest = self._steps.popleft()
        self.catch_up(ranks)
        self.due_at = time.monotonic() + self._grace_s
