"""End ranks: send them one signal after another, each followed by a grace time."""

from __future__ import annotations

import signal
import time
from collections import deque
from collections.abc import Sequence

Escalation = Sequence[signal.Signals | None]  # None: only a grace time

AFTER_FAILURE: Escalation = (None, signal.SIGTERM, signal.SIGKILL)  # at first, waiting ranks are freed and raise
WHEN_TIME_IS_UP: Escalation = (signal.SIGTERM, signal.SIGKILL)


def after_signal(number: signal.Signals) -> Escalation:
    """Return the escalation after a signal to the launcher: ranks get the same signal first."""
    gentle = (number,) if number is signal.SIGTERM else (number, signal.SIGTERM)
    return (*gentle, signal.SIGKILL)


class Shutdown:
    """The state of a shutdown.

    Attributes:
        escalated_at: When the latest signal was due.
        due_at: When to send the next signal; None if no shutdown is under way.
        latest: The latest signal.
    """

    def __init__(self, grace_s: float) -> None:
        self._grace_s = grace_s
        self._left: deque[signal.Signals | None] = deque()
        self.latest: signal.Signals | None = None
        self.escalated_at = 0.0
        self.due_at: float | None = None

    @property
    def has_begun(self) -> bool:
        """Whether ranks are being ended."""
        return self.due_at is not None

    def begin(self, escalation: Escalation) -> None:
        """Begin this escalation now, in place of an earlier one."""
        self._left = deque(escalation)
        self.due_at = time.monotonic()

    def is_due(self) -> bool:
        """Tell whether it is time for the next signal."""
        return self.due_at is not None and time.monotonic() >= self.due_at

    def escalate(self) -> signal.Signals | None:
        """Go on to the next signal and return it."""
        if not self._left:
            self.due_at = float("inf")
            return None
        self.latest = self._left.popleft()
        self.escalated_at = time.monotonic()
        self.due_at = self.escalated_at + self._grace_s
        return self.latest
