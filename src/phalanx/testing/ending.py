"""How a task ended on one rank, as its crew saw it."""

from __future__ import annotations

from dataclasses import dataclass

from phalanx.testing.rank_report import RankReport, Waiting
from phalanx.testing.shown_stacks import ShownStacks

_CLEAN = ("passed", "skipped", "xfailed", "rejected")


@dataclass
class Ending:
    """How a task ended on one rank.

    Attributes:
        rank: Its number.
        when: Its place in the order of endings.
        report: Its report; None if it made none.
        status: Exit code or 256 + signal of a rank that died.
        is_late: Whether it was ended because the time was up.
        was_ended: Whether it was ended because another rank had failed.
        was_injected: Whether an injected fault killed or stalled it.
        doing: What it was doing when it was ended: the operation it waited in, or the innermost call of its stack.
        goes_on: Whether its thread could not be ended.
        stacks: The stacks of its threads at that time, and of the processes that it had started.
        full_stacks: The same, with the calls inside phalanx, torch, pytest and Python.
        out: What it printed to standard output.
        err: What it printed to standard error.
    """

    rank: int
    when: int = 0
    report: RankReport | None = None
    status: int | None = None
    is_late: bool = False
    was_ended: bool = False
    was_injected: bool = False
    doing: Waiting | str = ""
    goes_on: bool = False
    stacks: str = ""
    full_stacks: str = ""
    out: str = ""
    err: str = ""

    def note(self, seen: ShownStacks) -> None:
        """Note its stacks, and where it is."""
        self.stacks, self.full_stacks = seen.short, seen.full
        self.doing = f"at {seen.place}" if seen.place else ""

    def is_failure(self) -> bool:
        """Tell whether the test failed because of this rank."""
        if self.report is not None:
            return self.report.outcome == "failed" or self.status is not None
        return not self.was_injected

    def is_consequence(self) -> bool:
        """Tell whether it failed only because another rank had failed."""
        return self.was_ended or (self.report is not None and self.report.is_consequence)

    def is_clean(self, *, also_failed: bool) -> bool:
        """Tell whether the rank can run another task; with `also_failed` even if it has raised."""
        if self.report is None or self.report.left_behind:
            return False
        return self.report.outcome in _CLEAN or (also_failed and self.report.outcome == "failed")
