"""What a job has come to, and the exit code for it."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from phalanx.jobs.rank import Rank

if TYPE_CHECKING:
    from phalanx.diagnosis.observation import Observation

TIMED_OUT_EXIT_CODE = 124  # as timeout(1)


@dataclass
class JobResult:
    """How ranks ended.

    Attributes:
        kind: Which way; "lost" when the process they were forked from was killed.
        ranks: All of them, with what they did when it was decided.
        signal: The signal that the launcher got, if that was it.
        seen: What could be seen of their groups when it was decided, unless all went well.
    """

    kind: Literal["done", "failed", "timeout", "signal", "lost"]
    ranks: list[Rank]
    signal: signal.Signals | None = None
    seen: Observation | None = None

    @property
    def exit_code(self) -> int:
        """The exit code of `phalanx run`: that of the rank to blame, if there is one."""
        if self.kind == "timeout":
            return TIMED_OUT_EXIT_CODE
        if self.signal is not None:
            return 128 + self.signal
        if self.kind == "lost":
            return 128 + signal.SIGKILL
        culprit = first_culprit(self.ranks)
        return 0 if culprit is None else culprit.exit_code or 1


def first_culprit(ranks: Sequence[Rank]) -> Rank | None:
    """Return the rank that failed first, and not because another had; else the first that failed at all."""
    failed = [rank for rank in ranks if rank.failed_at is not None]
    return min(failed, key=lambda rank: (not rank.is_culprit, rank.failed_at), default=None)
