"""Warnings about ranks that wait too long, printed while the job still runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from phalanx.diagnosis.observation import Observation
    from phalanx.diagnosis.waits import Wait

DEADLOCK_S = 5.0  # a deadlock is reported after this time


class Holdups:
    """Decides when to warn. It warns of the same wait again after twice the time.

    Args:
        warn_after_s: How long a rank may wait before there is a warning; 0 for never.
    """

    def __init__(self, warn_after_s: float) -> None:
        self._warn_after_s = warn_after_s
        self._next_s: dict[object, float] = {}  # by rank and operation: the waiting time of the next warning

    def is_due(self, waits: Sequence[Wait], now_ns: int) -> bool:
        """Tell whether a rank has waited so long that a warning is due."""
        if self._warn_after_s == 0 or not waits:
            return False
        from phalanx.diagnosis.waits import find_cycle

        circle = {wait.key for wait in find_cycle([wait for wait in waits if not wait.is_async])}
        is_due = False
        for wait in waits:
            waited_s = (now_ns - wait.start_ns) * 1e-9
            first_s = min(self._warn_after_s, DEADLOCK_S) if wait.key in circle else self._warn_after_s
            what = (wait.key, wait.start_ns)
            if waited_s >= self._next_s.get(what, first_s):
                self._next_s[what] = 2 * waited_s
                is_due = True
        living = {(wait.key, wait.start_ns) for wait in waits}
        self._next_s = {what: when for what, when in self._next_s.items() if what in living}
        return is_due


def describe_holdup(seen: Observation) -> list[str]:
    """Return the lines that say which rank holds up which."""
    from phalanx.diagnosis.findings import find
    from phalanx.diagnosis.summary import summarize

    return summarize(find(seen))
