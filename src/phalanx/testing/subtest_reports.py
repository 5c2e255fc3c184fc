"""Subtests of all ranks as pytest's own reports: a subtest that failed is reported once, with its ranks."""

from __future__ import annotations

import contextlib
from collections import Counter
from typing import Any

import pytest

from phalanx.diagnosis import formatting
from phalanx.testing.rank_subtests import SubtestResult
from phalanx.testing.verdict import Verdict


def log_subtests(item: Any, verdict: Verdict) -> None:
    """Report the subtests of a test."""
    found: dict[Any, dict[int, SubtestResult]] = {}
    for ending in verdict.endings:
        used: Counter[Any] = Counter()  # a loop may use the same name again and again
        for result in ending.report.subtests if ending.report is not None else ():
            key = (result.message, tuple(result.values.items()))
            used[key] += 1
            found.setdefault((*key, used[key]), {})[ending.rank] = result
    for (message, values, _), by_rank in found.items():
        _log(item, message, dict(values), by_rank)


def _log(item: Any, message: str | None, values: dict[str, str], by_rank: dict[int, SubtestResult]) -> None:
    from _pytest.subtests import SubtestContext, SubtestReport, failed_subtests_key

    failed = {rank: result for rank, result in by_rank.items() if result.outcome == "failed"}
    outcome = "failed" if failed else next(iter(by_rank.values())).outcome
    shown: Any = None
    if failed:
        shown = "\n".join(_describe(failed, failure) for failure in dict.fromkeys(f.failure for f in failed.values()))
    elif outcome == "skipped":
        shown = (str(item.path), item.location[1] or 0, next(iter(by_rank.values())).headline)
    report = pytest.TestReport(item.nodeid, item.location, dict.fromkeys(item.keywords, 1), outcome, shown, "call")  # type: ignore[arg-type]
    sub = SubtestReport._new(report, SubtestContext(msg=message, kwargs={}), None, None)
    object.__setattr__(sub.context, "kwargs", values)  # they are texts already
    if failed:
        counts = item.config.stash[failed_subtests_key]
        counts[getattr(item, "id", item.nodeid)] += 1
    capturing = item.config.pluginmanager.getplugin("capturemanager")
    with capturing.global_and_fixture_disabled() if capturing is not None else contextlib.nullcontext():
        item.ihook.pytest_runtest_logreport(report=sub)


def _describe(failed: dict[int, SubtestResult], failure: str) -> str:
    """Show one distinct failure, with all ranks that had it."""
    same = {rank: result for rank, result in failed.items() if result.failure == failure}
    first, *others = same
    lines = [f"{formatting.rank_list(same)}: {same[first].headline}", str(same[first].shown)]
    lines += [f"rank {rank}: {same[rank].headline}" for rank in others if same[rank].headline != same[first].headline]
    return "\n".join(lines)
