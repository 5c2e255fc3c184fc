"""What all runs of the suite together say about each test."""

from __future__ import annotations

from phalanx_tools.conformance.matrix import Union
from phalanx_tools.conformance.outcomes import Outcome, Report


def _report(mode: str, *outcomes: tuple[str, str, str]) -> Report:
    return Report(mode, "world 4", tuple(Outcome(name, status, reason, 0.1) for name, status, reason in outcomes), 1.0)


def test_a_test_counts_that_passed_in_one_mode() -> None:
    union = Union((_report("nccl", ("a", "skipped", "Gloo only")), _report("vgloo", ("a", "passed", ""))), 9.0)
    assert union.passed() == ["a"]
    assert union.rest() == []
    assert union.summary() == "upstream union: 1 of 1 passed in 9 s"


def test_the_rest_is_told_with_its_reason() -> None:
    union = Union((
        _report("nccl", ("a", "skipped", "switched off"), ("b", "passed", "")),
        _report("vgloo", ("a", "skipped", "switched off"), ("b", "skipped", "NCCL only")),
        _report("mpi", ("a", "skipped", "too few ranks"), ("b", "skipped", "NCCL only")),
    ), 9.0)  # fmt: skip
    assert union.rest() == [("a", "switched off")]
    assert union.summary() == "upstream union: 1 of 2 passed in 9 s"


def test_a_failure_is_not_hidden_by_another_mode() -> None:
    union = Union((_report("nccl", ("a", "failed", "rank 1 died")), _report("vgloo", ("a", "passed", ""))), 9.0)
    assert [(report.mode, outcome.name) for report, outcome in union.failed()] == [("nccl", "a")]
    assert union.summary() == "upstream union: 1 of 1 passed, 1 failed in a mode in 9 s"


def test_a_failure_is_the_reason_before_a_skip() -> None:
    reports = (_report("nccl", ("a", "failed", "rank 1 died")), _report("vgloo", ("a", "skipped", "NCCL only")))
    assert Union(reports, 9.0).rest() == [("a", "rank 1 died")]
