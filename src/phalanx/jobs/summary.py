"""The last lines about a job: which rank failed and why, and how the other ranks ended."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from phalanx.diagnosis.formatting import advice_about_death, death, operation, rank_list
from phalanx.jobs.job import Job
from phalanx.jobs.job_result import JobResult
from phalanx.jobs.rank import JobRank
from phalanx.launch.rank import first_culprit

if TYPE_CHECKING:
    from phalanx.diagnosis.observation import Observation

_MOST_LINES = 3  # about ranks of one kind of end


def describe_activity(rank: JobRank) -> str:
    """Describe what a rank is doing."""
    if rank.pid == 0:
        return "has not started"
    if rank.status is not None:
        return death(rank.status) if rank.status else "is done"
    if rank.note is not None:
        return f"ends because of {rank.note}"
    if rank.doing is None:
        return f"is at {rank.place}" if rank.place else "runs, and did not say where"
    return f"is in {operation(rank.doing)}" + (f", for {rank_list(rank.waits_for)}" if rank.waits_for else "")


def describe_children(rank: JobRank, seen: Observation) -> list[str]:
    """Say which line each process that a rank has started is at, such as a worker of a DataLoader."""
    from phalanx.diagnosis.findings import place_of

    children = [process for process in seen.processes if process.rank_pid == rank.pid]
    return [f"pid {child.pid}, which it started, is at {place}" for child in children if (place := place_of(child))]


def summarise(job: Job, outcome: JobResult, places: Sequence[str]) -> list[str]:
    """Return a few lines that say how a job failed.

    Args:
        job: The job.
        outcome: How it ended.
        places: Lines that say where to find more.
    """
    headline = {
        "timeout": f"ended after {job.timeout_s or 0:.3g} s",
        "signal": f"ended by {outcome.signal.name if outcome.signal is not None else ''}",
        "lost": "the process that ranks are forked from was killed, and all ranks with it",
    }.get(outcome.kind)
    lines = [f"phalanx run: {headline or describe_failure(outcome.ranks)}"]
    culprit = first_culprit(outcome.ranks) if headline is None else None
    if culprit is not None:
        lines += describe_cause(culprit, outcome.seen, is_python=job.program.kind != "executable")
    lines += [*describe_others(outcome.ranks), *places]
    whose = f", of rank {culprit.number}" if culprit is not None else ""
    return [*lines, f"  exit code   {outcome.exit_code}{whose}"]


def describe_failure(ranks: Sequence[JobRank]) -> str:
    """Return a line that says which rank failed, and why; or which ranks, if several failed alike."""
    rank = first_culprit(ranks)
    if rank is None:
        return "no rank failed"
    failed = [rank.number, *(other.number for other in _alike(rank, ranks))]
    why = death(rank.status if rank.status is not None else -1) if rank.note is None else f"failed: {rank.note}"
    return f"{rank_list(failed)} of {len(ranks)} {why}"


def describe_cause(rank: JobRank, seen: Observation | None, *, is_python: bool) -> list[str]:
    """Say what the traceback of the first rank that failed does not say, or the terminal does not show."""
    if rank.note is not None:
        return [_line(*text.strip().split(maxsplit=1)) for text in rank.note.details if len(text.split()) > 1]
    last = _last_call(rank, seen)
    advice = advice_about_death(rank.status if rank.status is not None else -1) if is_python else ""
    return [_line(label, text) for label, text in (("last", last), ("do", advice)) if text]


def _last_call(rank: JobRank, seen: Observation | None) -> str:
    """Say in which collective a rank was that has died, or which was its last."""
    rows = [row for view in (seen.groups if seen is not None else ()) for row in view.rows if row.any_pid == rank.pid]
    called = [row for row in rows if row.entry is not None]
    if not called:
        return ""
    row = min(called, key=lambda row: row.entry.seconds_ago if row.entry is not None else 0.0)
    assert row.entry is not None
    return f"{'in' if row.finished < row.arrived else 'after'} {operation(row.entry)}"


def describe_others(ranks: Sequence[JobRank]) -> list[str]:
    """Say how the other ranks ended and what they were doing, with a line for each kind of end."""
    culprit = first_culprit(ranks)
    alike = [] if culprit is None else _alike(culprit, ranks)
    others = [rank for rank in ranks if rank is not culprit and rank not in alike]
    too = [rank for rank in others if rank.is_culprit]
    freed = [rank for rank in others if rank.failed_at is not None and not rank.is_culprit]
    ended = [rank for rank in others if rank.failed_at is None and rank.sent and rank.status != 0]
    lines = [_line("failed too", text) for text in _shorten(_describe_failures(too), too)]
    if culprit is not None and culprit.has_shown and alike:
        same = f"that of rank {culprit.number} is above; {rank_list(rank.number for rank in alike)}: the same"
        lines.append(_line("traceback", same))
    lines += [_line("freed", text) for text in _shorten(_by_activity(freed, lambda rank: ""), freed)]
    lines += [
        _line("ended", text) for text in _shorten(_by_activity(ended, lambda rank: f" by {_last_signal(rank)}"), ended)
    ]
    return lines


def _alike(culprit: JobRank, ranks: Sequence[JobRank]) -> list[JobRank]:
    """Return the other ranks that failed by themselves, with the same error at the same place."""
    if culprit.note is None:
        return []
    return [
        rank
        for rank in ranks
        if rank is not culprit
        and rank.is_culprit
        and rank.note is not None
        and (rank.note.identity, str(rank.note)) == (culprit.note.identity, str(culprit.note))
    ]


def _describe_failures(ranks: Sequence[JobRank]) -> list[str]:
    by_text: dict[str, list[int]] = {}
    for rank in ranks:
        by_text.setdefault(str(rank.note or death(rank.status or -1)), []).append(rank.number)
    return [f"{rank_list(numbers)}: {text}" for text, numbers in by_text.items()]


def _shorten(texts: list[str], ranks: Sequence[JobRank]) -> list[str]:
    """Return one text for all ranks if there are too many texts."""
    if len(texts) <= _MOST_LINES:
        return texts
    return [
        f"{rank_list(rank.number for rank in ranks)}, in {len(texts)} different ways; the logs and the record say how"
    ]


def _line(label: str, text: str) -> str:
    return f"  {label:<11} {text}"


def _last_signal(rank: JobRank) -> str:
    if rank.status is not None and rank.status > 256:
        return signal.Signals(rank.status - 256).name
    return signal.Signals(rank.sent[-1]).name


def _by_activity(ranks: Iterable[JobRank], suffix: Callable[[JobRank], str]) -> list[str]:
    """Return one text for all ranks that did the same."""
    groups: dict[tuple[str, str], list[int]] = {}
    for rank in ranks:
        doing = rank.note.doing if rank.note is not None else ""
        if not doing and rank.doing is not None:
            doing = operation(rank.doing)
        where = f", in {doing}" if doing else f", at {rank.place}" if rank.place else ""
        groups.setdefault((suffix(rank), where), []).append(rank.number)
    return [f"{rank_list(numbers)}{end}{where}" for (end, where), numbers in groups.items()]
