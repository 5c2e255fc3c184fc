"""Turn the endings of all ranks into one verdict: passed, skipped, or failed because of some ranks."""

from __future__ import annotations

import os
import pickle
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from phalanx.diagnosis import formatting
from phalanx.errors import OperationTimeoutError, RankFailedError
from phalanx.launch.disagreement import put_together
from phalanx.testing.ending import Ending
from phalanx.testing.rank_report import RankReport, Waiting


@dataclass
class Failure:
    """One distinct failure and the ranks that had it.

    Attributes:
        endings: The endings of these ranks, the first to fail first.
        title: What happened, in a line.
    """

    endings: list[Ending]
    title: str

    @property
    def ranks(self) -> list[int]:
        """The ranks that had it."""
        return sorted(ending.rank for ending in self.endings)


@dataclass
class Verdict:
    """How a test ended.

    Attributes:
        outcome: "passed", "skipped", "xfailed", "rejected" or "failed".
        reason: Why, unless it passed.
        failures: The failures that no other rank caused, the first one first.
        bystanders: Ranks that the failure of others stopped, with what they were doing.
        endings: The endings of all ranks.
        num_ranks: How many ranks there are.
        timeout_s: The time limit.
        interruption: What ended the test from outside, such as pytest-timeout's alarm.
    """

    outcome: str
    endings: Sequence[Ending]
    num_ranks: int
    timeout_s: float
    reason: str = ""
    failures: list[Failure] = field(default_factory=list)
    bystanders: list[tuple[int, str]] = field(default_factory=list)
    interruption: BaseException | None = None

    def summary(self) -> str:
        """Say in one line which ranks failed, how, and what the others were doing."""
        parts = [f"{formatting.rank_list(finding.ranks)}: {finding.title}" for finding in self.failures]
        by_text: dict[str, list[int]] = {}
        for rank, text in self.bystanders:
            by_text.setdefault(text, []).append(rank)
        parts += [f"{formatting.rank_list(ranks)}: {text}" for text, ranks in by_text.items()]
        return "; ".join(parts)

    def error(self) -> BaseException:
        """Return the exception to raise for it: the rank's own if it can be rebuilt."""
        first = self.failures[0].endings[0]
        endings = [ending for finding in self.failures for ending in finding.endings]
        kinds = {ending.report.kind for ending in endings if ending.report is not None}
        if first.report is not None and first.status is None and len(kinds) == 1:
            error = _rebuilt(first.report)
            if error is not None:
                return error
        if first.is_late:
            return OperationTimeoutError(self.summary(), num_ranks=self.num_ranks, culprits=(first.rank,))
        failed = RankFailedError(
            f"rank {first.rank} of {self.num_ranks}: {self.failures[0].title}",
            rank=first.rank,
            num_ranks=self.num_ranks,
            culprits=(first.rank,),
        )
        status = first.status
        failed.exit_code = status if status is not None and status < 256 else None
        failed.signal = status - 256 if status is not None and status >= 256 else None
        return failed


def judge(endings: Sequence[Ending], timeout_s: float) -> Verdict:
    """Return the verdict."""
    _settle_disagreements(endings)
    num_ranks = len(endings)
    verdict = Verdict("passed", endings, num_ranks, timeout_s)
    failures = [ending for ending in endings if ending.is_failure()]
    if failures:
        verdict.outcome = "failed"
        skipped = [ending for ending in endings if ending.report is not None and ending.report.outcome == "skipped"]
        if skipped and all(ending.is_consequence() for ending in failures):
            return _divided(verdict, "skipped")  # the others failed because these ranks had left
        own = [ending for ending in failures if not ending.is_consequence()]
        own = own or [ending for ending in failures if ending.report is not None] or failures
        # Of the late ranks, those that others wait for come first.
        own.sort(key=lambda ending: (ending.is_late, isinstance(ending.doing, Waiting), ending.when))
        verdict.failures = _distinct(own, timeout_s)
        verdict.bystanders = _describe_bystanders([ending for ending in failures if ending not in own])
        verdict.bystanders += [
            (ending.rank, "lost to a fault that the test asked for") for ending in endings if ending.was_injected
        ]
        verdict.reason = verdict.summary()
        return verdict
    reports = [ending.report for ending in endings if ending.report is not None]
    if not reports:
        title = "lost to faults that the test asked for; with no rank left, nobody can say whether it passed"
        verdict.outcome, verdict.failures = "failed", [Failure(list(endings), title)]
        verdict.reason = verdict.summary()
        return verdict
    for outcome in ("rejected", "skipped", "xfailed"):
        chosen = [report for report in reports if report.outcome == outcome]
        if not chosen:
            continue
        if len(chosen) == len(reports):
            verdict.outcome, verdict.reason = outcome, chosen[0].headline
            return verdict
        return _divided(verdict, outcome)
    return verdict


def _settle_disagreements(endings: Sequence[Ending]) -> None:
    """Note which ranks are right, if ranks made different calls, from what all of them know."""
    reports = [ending.report for ending in endings if ending.report is not None]
    for report, known in zip(reports, put_together([report.disagreement for report in reports]), strict=True):
        report.disagreement = known
        report.is_consequence |= known is not None and known.is_right


def _rebuilt(report: RankReport) -> BaseException | None:
    """Return the exception that a rank raised; None if it can't be rebuilt here, or becomes another one."""
    try:
        error = pickle.loads(report.exception)
    except BaseException:
        return None
    is_same = isinstance(error, BaseException) and type(error).__name__ == report.kind
    return error if is_same else None


def _describe_bystanders(endings: Sequence[Ending]) -> list[tuple[int, str]]:
    """Say what ranks were doing. A rank that came to a broken operation gets the same text as the ranks in it."""
    doings = [ending.doing if ending.report is None else ending.report.waited_in for ending in endings]
    full = {replace(doing, number=0): doing for doing in doings if isinstance(doing, Waiting) and doing.number}
    found = [full.get(doing, doing) if isinstance(doing, Waiting) else doing for doing in doings]
    return [
        (ending.rank, f"{doing or 'running'}{_aftermath(ending)}") for ending, doing in zip(endings, found, strict=True)
    ]


def _aftermath(ending: Ending) -> str:
    return "; its thread could not be ended and goes on" if ending.goes_on else ""


def _divided(verdict: Verdict, outcome: str) -> Verdict:
    """Return a failure, because some ranks skipped and others did not, so it is not clear whether the test passed."""
    some = [ending for ending in verdict.endings if ending.report is not None and ending.report.outcome == outcome]
    reason = some[0].report.headline if some[0].report is not None else ""
    ranks = formatting.rank_list(ending.rank for ending in some)
    others = formatting.rank_list(ending.rank for ending in verdict.endings if ending not in some)
    verdict.outcome = "failed"
    title = f"{outcome} ({reason}) while {others} ran the test; decide the same on every rank"
    verdict.failures = [Failure(some, title)]
    verdict.reason = f"{ranks}: {title}"
    return verdict


def _distinct(endings: Sequence[Ending], timeout_s: float) -> list[Failure]:
    found: dict[object, Failure] = {}
    for ending in endings:
        report = ending.report
        key: object = ("died", ending.status) if report is None or ending.status is not None else ""
        if ending.is_late:
            key = ("late", ending.doing, ending.goes_on)
        elif key == "" and report is not None:
            key = (report.kind, report.place)
        if key in found:
            found[key].endings.append(ending)
        else:
            found[key] = Failure([ending], _title(ending, timeout_s))
    return list(found.values())


def _title(ending: Ending, timeout_s: float) -> str:
    doing = (f", {ending.doing}" if ending.doing else "") + _aftermath(ending)
    if ending.is_late:
        return f"not done after {formatting.seconds(timeout_s)}{doing}"
    if ending.status is not None:
        when = " after the test had ended" if ending.report is not None else ""
        return f"{formatting.death(ending.status)}{when}{doing}"
    if ending.report is None:
        return f"ended, because another rank had failed{doing}"
    place = f" ({os.path.basename(ending.report.place)})" if ending.report.place else ""
    return f"{ending.report.headline}{place}"
