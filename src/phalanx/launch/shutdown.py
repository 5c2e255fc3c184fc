"""End ranks step by step: each step is a signal, or none, and a grace time."""

from __future__ import annotations

import signal
import time
from collections import deque
from collections.abc import Sequence

Steps = Sequence[signal.Signals | None]

AFTER_FAILURE: Steps = (None, signal.SIGTERM, signal.SIGKILL)  # in the first step, waiting ranks are freed and raise
WHEN_TIME_IS_UP: Steps = (signal.SIGTERM, signal.SIGKILL)


def after_signal(number: signal.Signals) -> Steps:
    """Return the steps after a signal to the launcher: ranks get the same signal first."""
    gentle = (number,) if number is signal.SIGTERM else (number, signal.SIGTERM)
    return (*gentle, signal.SIGKILL)


class Shutdown:
    """The state of a shutdown.

    Attributes:
        stepped_at: When the latest step was taken.
        due_at: When to take the next step; None if no shutdown is under way.
        latest: The signal of the latest step.
    """

    def __init__(self, grace_s: float) -> None:
        self._grace_s = grace_s
        self._steps: deque[signal.Signals | None] = deque()
        self.latest: signal.Signals | None = None
        self.stepped_at = 0.0
        self.due_at: float | None = None

    @property
    def has_begun(self) -> bool:
        """Whether ranks are being ended."""
        return self.due_at is not None

    def begin(self, steps: Steps) -> None:
        """Plan these steps, the first for now, instead of those that were planned before."""
        self._steps = deque(steps)
        self.due_at = time.monotonic()

    def is_due(self) -> bool:
        """Tell whether it is time for the next step."""
        return self.due_at is not None and time.monotonic() >= self.due_at

    def step(self) -> signal.Signals | None:
        """Go on to the next step and return its signal."""
        if not self._steps:
            self.due_at = float("inf")
            return None
        self.latest = self._steps.popleft()
        self.stepped_at = time.monotonic()
        self.due_at = self.stepped_at + self._grace_s
        return self.latest
