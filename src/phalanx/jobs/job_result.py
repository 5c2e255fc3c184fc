"""How a job ended, and its exit code."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from phalanx.jobs.rank import JobRank
from phalanx.launch.rank import first_culprit

if TYPE_CHECKING:
    from phalanx.diagnosis.observation import Observation
    from phalanx.launch.hosts.blame import AttemptVerdict

TIMED_OUT_EXIT_CODE = 124  # as with timeout(1)


@dataclass
class JobResult:
    """How a job ended.

    Attributes:
        kind: Why it ended; "lost" if the process that ranks are forked from was killed.
        ranks: All ranks, with what they were doing when this was decided.
        signal: The signal that ended the launcher, if there was one.
        seen: An observation of the job from that moment, unless it succeeded.
        verdict: What all hosts of the job say about its failure; None on one host.
    """

    kind: Literal["done", "failed", "timeout", "signal", "lost"]
    ranks: list[JobRank]
    signal: signal.Signals | None = None
    seen: Observation | None = None
    verdict: AttemptVerdict | None = None

    @property
    def is_elsewhere(self) -> bool:
        """Whether something on another host is to blame."""
        return self.verdict is not None and all(rank.number != self.verdict.rank for rank in self.ranks)

    @property
    def exit_code(self) -> int:
        """The exit code of `phalanx run`: that of the rank that failed first, if there is one."""
        if self.kind == "timeout":
            return TIMED_OUT_EXIT_CODE
        if self.signal is not None:
            return 128 + self.signal
        if self.kind == "lost":
            return 128 + signal.SIGKILL
        if self.verdict is not None:
            return self.verdict.exit_code or 1
        culprit = first_culprit(self.ranks)
        return 0 if culprit is None else culprit.exit_code or 1
