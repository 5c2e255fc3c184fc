"""Turn the endings of a test's ranks into its result. Every rank counts, not only the first."""

from __future__ import annotations

import logging
import unittest
from collections.abc import Sequence
from typing import Any

from phalanx.testing.ending import Ending
from phalanx.testing.unittest.own_stacks import without_harness
from phalanx.testing.unittest.skip_codes import TEST_ERROR_EXIT_CODE, TEST_SKIPS, meaning_of
from phalanx.testing.unittest.torch_case import IS_SANDCASTLE
from phalanx.testing.verdict import Verdict, judge

__unittest = True  # unittest leaves such frames out of tracebacks
_logger = logging.getLogger(__name__)


def may_end(status: int) -> bool:
    """Tell whether a rank without a report may end with this status: passed or skipped."""
    return status == 0 or meaning_of(status) is not None


def check_errors(endings: Sequence[Ending], exits: Sequence[str], elapsed_s: float, timeout_s: float) -> None:
    """Check that no rank raised, and none was late.

    Args:
        endings: The endings of all ranks, in order.
        exits: A text for the end of each rank: "Process 0 exited with error code 10 and".
        elapsed_s: How long the test took.
        timeout_s: How long it may take.

    Raises:
        RuntimeError: A rank raised or was late; the text has the stack or traceback of every such rank.
    """
    verdict = judge(endings, timeout_s)  # it also finds out who is right, if ranks made different calls
    late = [ending for ending in endings if ending.is_late]
    raised = [ending for ending in endings if _has_raised(ending) and not ending.is_consequence()]
    if not raised:
        raised = [ending for ending in endings if _has_raised(ending)]
    if not late and not raised:
        return
    parts = [verdict.summary()]
    for ending in late:
        name = exits[ending.rank].partition(" exited")[0]
        parts.append(f"{name} terminated or timed out after {elapsed_s:.3g} seconds; it was here:")
        parts.append(without_harness(ending.full_stacks) or "  (its stacks are not available)")
    dead = [ending for ending in endings if ending.report is None and ending.status is not None and ending.stacks]
    parts += [f"rank {ending.rank} crashed here:\n{without_harness(ending.full_stacks)}" for ending in dead]
    parts += [f"{exits[ending.rank]} exception:\n{_shown(ending)}" for ending in raised]
    raise RuntimeError("\n\n".join(parts))


def _has_raised(ending: Ending) -> bool:
    return ending.status == TEST_ERROR_EXIT_CODE or (ending.report is not None and ending.report.outcome == "failed")


def _shown(ending: Ending) -> str:
    return str(ending.report.shown) if ending.report is not None else "(it did not report which)"


def check_skips(endings: Sequence[Ending], test_id: str, codes: Sequence[int | None]) -> bool:
    """Check whether the ranks have skipped the test.

    Returns:
        Whether they have skipped it, if a skip counts as a pass.

    Raises:
        SkipTest: They have skipped it.
        AssertionError: Some ranks have skipped it, but rank 0 has not.
    """
    reasons = {rank: reason for rank, code in enumerate(codes) if (reason := _reason(endings[rank], code)) is not None}
    if not reasons:
        return False
    if 0 not in reasons:
        rank, reason = next(iter(reasons.items()))
        raise AssertionError(f"rank {rank} skipped ({reason}) while rank 0 ran the test; decide the same on every rank")
    if IS_SANDCASTLE:
        _logger.info("Skipping %s on sandcastle for the following reason: %s", test_id, reasons[0])
        return True
    raise unittest.SkipTest(reasons[0])


def _reason(ending: Ending, code: int | None) -> str | None:
    report = ending.report
    reason = report.headline if report is not None and report.outcome == "skipped" else ""
    meaning = meaning_of(code) if code is not None else (TEST_SKIPS["generic"].message if reason else None)
    return f"{meaning}: {reason}" if meaning is not None and reason else meaning


def check_deaths(endings: Sequence[Ending], timeout_s: float) -> None:
    """Check that no rank died during the test.

    Raises:
        AssertionError: A rank died.
    """
    dead = [ending for ending in endings if ending.report is None]
    if dead:
        stacks = [without_harness(ending.full_stacks) for ending in dead if ending.stacks]
        raise AssertionError("\n".join([judge(endings, timeout_s).summary(), *stacks]))


def check_exit_codes(endings: Sequence[Ending], processes: Sequence[Any], expected: int, timeout_s: float) -> None:
    """Check the exit codes: rank 0 must end with the expected code, the other ranks with that code or with 0.

    Raises:
        AssertionError: A rank has ended with another code.
    """
    problems = []
    for ending, process in zip(endings, processes, strict=True):
        code = process.exitcode
        if ending.was_ended or code == expected or (code == 0 and ending.rank > 0):
            continue
        problems.append(f"Expected exit code {expected} but got {code} for pid: {process.pid} (rank {ending.rank})")
        if ending.stacks:
            problems.append(without_harness(ending.full_stacks))
    if problems:
        verdict = judge(endings, timeout_s)
        raise AssertionError("\n".join([_summary(verdict), *problems]))


def _summary(verdict: Verdict) -> str:
    return verdict.summary() if verdict.failures else "a rank did not end as expected"
