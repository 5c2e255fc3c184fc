"""The suite in every mode and on several numbers of ranks, each in a process of its own: what passes in any of them?"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import wait
from typing import Any

from phalanx.errors import UsageError
from phalanx_tools.conformance.outcomes import Outcome, Report
from phalanx_tools.conformance.upstream import DEFAULT_TIMEOUT_S, run_upstream


@dataclass(frozen=True)
class Part:
    """One run of the suite.

    Attributes:
        mode: One of modes.MODES.
        world_size: Ranks of each test.
        is_rest: Whether it leaves out what has passed in this mode before: eight ranks are slow on few cores.
        names: Tests to run; all when empty.
    """

    mode: str
    world_size: int
    is_rest: bool = False
    names: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.mode} world {self.world_size}"


# Some tests want exactly four ranks, some at least eight, some MPI's name. Modes without GPUs add none.
PARTS = (
    Part("nccl", 4), Part("vgloo", 4), Part("mpi", 4),
    Part("nccl", 2), Part("vgloo", 2), Part("mpi", 2),
    Part("nccl", 8, is_rest=True), Part("vgloo", 8, is_rest=True), Part("mpi", 8, is_rest=True),
)  # fmt: skip
FORCED_PARTS = (Part("nccl", 4), Part("vgloo", 4), Part("nccl", 2))  # one wants exactly two ranks, two want four

Watch = Callable[[Part, Outcome, int, int], None]


@dataclass(frozen=True)
class Union:
    """What all parts together say about each test."""

    reports: tuple[Report, ...]
    seconds: float

    def names(self) -> list[str]:
        """Return all tests."""
        return sorted({outcome.name for report in self.reports for outcome in report.outcomes})

    def passed(self) -> list[str]:
        """Return the tests that passed in one part or more."""
        return sorted({outcome.name for report in self.reports for outcome in report.with_status("passed")})

    def num_passed(self) -> int:
        """Return how many those are."""
        return len(self.passed())

    def failed(self) -> list[tuple[Report, Outcome]]:
        """Return every failure, with its part."""
        return [(report, outcome) for report in self.reports for outcome in report.with_status("failed")]

    def rest(self) -> list[tuple[str, str]]:
        """Return the tests that passed nowhere, with the reason: of several, what most parts say."""
        passed = set(self.passed())
        return [(name, self._reason(name)) for name in self.names() if name not in passed]

    def _reason(self, name: str) -> str:
        outcomes = [outcome for report in self.reports for outcome in report.outcomes if outcome.name == name]
        failed = [outcome.reason for outcome in outcomes if outcome.status == "failed"]
        reasons = failed or [outcome.reason for outcome in outcomes]
        return max(reasons, key=reasons.count)

    def summary(self) -> str:
        """Return the last line."""
        failures = len(self.failed())
        failed = f", {failures} failed in a mode" if failures else ""
        return f"upstream union: {len(self.passed())} of {len(self.names())} passed{failed} in {self.seconds:.0f} s"

    def as_json(self) -> dict[str, Any]:
        """Return it in types that JSON has."""
        return {
            "summary": self.summary(),
            "passed": self.passed(),
            "rest": [{"name": name, "reason": reason} for name, reason in self.rest()],
            "runs": [report.as_json() for report in self.reports],
        }


def run_matrix(
    parts: Sequence[Part],
    *,
    timeout_s: float = DEFAULT_TIMEOUT_S,
    is_forced: bool = False,
    num_at_once: int = 1,
    watch: Watch = lambda *_: None,
    when_done: Callable[[Part, Report], None] = lambda *_: None,
) -> Union:
    """Run all parts, some at once.

    Raises:
        UsageError: A part could not be run.
    """
    start = time.monotonic()
    waiting, reports = list(parts), dict[Part, Report]()
    running: dict[Any, _Running] = {}
    try:
        while waiting or running:
            while waiting and len(running) < num_at_once:
                part = waiting.pop(0)
                one = _Running(part, _names_for(part, reports), timeout_s, is_forced)
                running[one.pipe] = one
            for pipe in wait(list(running)):
                one = running[pipe]
                message = one.next_message()
                if isinstance(message, Report):
                    reports[one.part] = message
                    when_done(one.part, message)
                    del running[pipe]
                else:
                    watch(one.part, *message)
    finally:
        for one in running.values():
            one.process.terminate()
    return Union(tuple(reports[part] for part in parts), time.monotonic() - start)


def _names_for(part: Part, reports: dict[Part, Report]) -> list[str]:
    """Return the tests to run, or none for all of them."""
    earlier = [report for done, report in reports.items() if done.mode == part.mode]
    if not part.is_rest or not earlier:
        return list(part.names)
    passed = {outcome.name for report in earlier for outcome in report.with_status("passed")}
    return sorted({outcome.name for report in earlier for outcome in report.outcomes} - passed)


class _Running:
    """A part under way."""

    def __init__(self, part: Part, names: list[str], timeout_s: float, is_forced: bool) -> None:
        self.part = part
        self.pipe, theirs = multiprocessing.Pipe(duplex=False)
        fork = multiprocessing.get_context("fork")
        self.process = fork.Process(target=_run_part, args=(theirs, part, names, timeout_s, is_forced))
        self.process.start()
        theirs.close()

    def next_message(self) -> Any:
        try:
            message = self.pipe.recv()
        except EOFError:
            self.process.join(10)
            raise UsageError(f"{self.part} ended with {self.process.exitcode} and no report") from None
        if isinstance(message, Exception):
            raise message
        if isinstance(message, Report):
            self.process.join(10)
        return message


def _run_part(pipe: Any, part: Part, names: list[str], timeout_s: float, is_forced: bool) -> None:
    try:
        report = run_upstream(
            part.mode, part.world_size, names=names, timeout_s=timeout_s, is_forced=is_forced,
            watch=lambda *outcome: pipe.send(outcome),
        )  # fmt: skip
        pipe.send(report)
    except UsageError as error:
        pipe.send(error)
