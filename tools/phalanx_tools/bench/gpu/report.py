"""Words for what was measured on a GPU: lines of a table, and rows for a file. No torch."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from phalanx_tools.bench.cases import Case, Sample
from phalanx_tools.bench.gpu.goals import KIB, MIB, compare_with_goal, least_bytes, share_of_copy

HEAD = (
    f"{'operation':<15}{'ranks':>5}{'size':>9}{'phalanx us':>12}{'via torch us':>14}{'gloo us':>12}"
    f"{'x gloo':>9}{'x via torch':>13}{'of copy':>9}  goal"
)


def size_in_words(size_bytes: int) -> str:
    """Return a size with its unit."""
    for unit, scale in (("MiB", MIB), ("KiB", KIB)):
        if size_bytes >= scale:
            return f"{size_bytes // scale} {unit}"
    return f"{size_bytes} B"


def medians(samples: Sequence[Sample]) -> dict[str, float]:
    """Return the median of each contender."""
    return {sample.contender: statistics.median(sample.times_s) for sample in samples if sample.times_s}


def line_of(samples: Sequence[Sample], copy_bytes_per_s: float) -> str:
    """Return one line of the table: all contenders of one case."""
    if not samples:
        return "nobody could run it"
    case, times = samples[0].case, medians(samples)
    ours, through_torch, gloo = (times.get(name) for name in ("phalanx", "phalanx_torch", "gloo"))
    wrong = [sample.contender for sample in samples if not sample.is_correct]
    goal = judge(case, times, copy_bytes_per_s)
    share = "-" if ours is None else f"{share_of_copy(case, ours, copy_bytes_per_s):.1%}"
    return (
        f"{case.operation:<15}{case.ranks:>5}{size_in_words(case.bytes):>9}{_micros(ours):>12}"
        f"{_micros(through_torch):>14}{_micros(gloo):>12}{_ratio(gloo, ours):>9}{_ratio(gloo, through_torch):>13}"
        f"{share:>9}  {goal}{' WRONG: ' + ', '.join(wrong) if wrong else ''}"
    )


def judge(case: Case, times: dict[str, float], copy_bytes_per_s: float) -> str:
    """Judge phalanx's own calls against the goals."""
    ours = times.get("phalanx")
    return "not measured" if ours is None else compare_with_goal(case, ours, times.get("gloo"), copy_bytes_per_s)


def to_gpu_rows(samples: Sequence[Sample], copy_bytes_per_s: float) -> list[dict[str, Any]]:
    """Return one row per contender and case."""
    of_case: dict[Case, list[Sample]] = {}
    for sample in samples:
        of_case.setdefault(sample.case, []).append(sample)
    rows = []
    for case, its_samples in of_case.items():
        times = medians(its_samples)
        for sample in its_samples:
            ours = times[sample.contender]
            rows.append(
                {
                    "operation": case.operation,
                    "ranks": case.ranks,
                    "bytes": case.bytes,
                    "contender": sample.contender,
                    "median_us": ours * 1e6,
                    "least_us": min(sample.times_s) * 1e6,
                    "most_us": max(sample.times_s) * 1e6,
                    "turns": len(sample.times_s),
                    "times_gloo": times["gloo"] / ours if "gloo" in times else None,
                    "least_bytes": least_bytes(case),
                    "share_of_copy": share_of_copy(case, ours, copy_bytes_per_s),
                    "goal": judge(case, times, copy_bytes_per_s) if sample.contender == "phalanx" else "",
                    "correct": sample.is_correct,
                }
            )
    return rows


def _micros(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1e6:,.1f}"


def _ratio(rival: float | None, ours: float | None) -> str:
    return "-" if rival is None or ours is None else f"{rival / ours:.1f}"


def training_lines(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Say what communication adds to a step, and what sharing a GPU costs."""
    lines = []
    alone = next((row for row in rows if row["backend"] == "alone"), None)
    for row in rows:
        steps = f"step {row['step']['median_s'] * 1e3:.1f} ms"
        if row["backend"] != "alone":
            steps += (
                f", without communication {row['silent_step']['median_s'] * 1e3:.1f} ms: "
                f"{row['exposed_share']:.1%} of the step is communication that is not hidden"
            )
            steps += f" ({row['goal']})" if row["goal"] else ""
            steps += (
                f"; with a hook that communicates nothing {row['quiet_step']['median_s'] * 1e3:.1f} ms: "
                f"{row['exposed_beside_quiet']:.1%}"
            )
        lines.append(
            f"{row['backend']:<8}{row['ranks']:>2} x {row['sequences_per_rank']} sequences{_way(row)}: {steps}; "
            f"{row['tokens_per_s']:,.0f} tokens/s" + _beside(row, alone)
        )
    return lines


def _way(row: dict[str, Any]) -> str:
    if row["backend"] == "alone":
        return ""
    return ", gradient_as_bucket_view=True" if row["gradient_as_bucket_view"] else ", DDP's defaults"


def _beside(row: dict[str, Any], alone: dict[str, Any] | None) -> str:
    if alone is None or row is alone:
        return ""
    whole = alone["tokens_per_s"]
    silent = f", {row['silent_tokens_per_s'] / whole:.2f}x without communication" if row["backend"] != "alone" else ""
    return f", {row['tokens_per_s'] / whole:.2f}x of one rank that does all the work{silent}"
