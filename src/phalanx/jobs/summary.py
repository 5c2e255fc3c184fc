"""The last lines about a job: which rank failed and why, and how the other ranks ended."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable, Sequence

from phalanx.diagnosis.formatting import death, operation, rank_list
from phalanx.jobs.job import Job
from phalanx.jobs.job_result import JobResult
from phalanx.jobs.rank import JobRank
from phalanx.launch.rank import first_culprit


def describe_activity(rank: JobRank) -> str:
    """Describe what a rank is doing."""
    if rank.pid == 0:
        return "has not started"
    if rank.status is not None:
        return death(rank.status) if rank.status else "is done"
    if rank.note is not None:
        return f"ends because of {rank.note}"
    if rank.doing is None:
        return "computes"
    return f"is in {operation(rank.doing)}" + (f", for {rank_list(rank.waits_for)}" if rank.waits_for else "")


def summarise(job: Job, outcome: JobResult) -> list[str]:
    """Return a few lines that say how a job failed."""
    if outcome.signal is signal.SIGPIPE:
        return []  # the reader of the output is gone
    headline = {
        "timeout": f"ended after {job.timeout_s or 0:.3g} s",
        "signal": f"ended by {outcome.signal.name if outcome.signal is not None else ''}",
        "lost": "the process that ranks are forked from was killed, and all ranks with it",
    }.get(outcome.kind) or describe_failure(outcome.ranks)
    others = describe_others(outcome.ranks)
    return [f"phalanx run: {headline}", *others, f"  exit code   {outcome.exit_code}"]


def describe_failure(ranks: Sequence[JobRank]) -> str:
    """Return a line that says which rank failed, and why."""
    rank = first_culprit(ranks)
    if rank is None:
        return "no rank failed"
    if rank.note is not None:
        return f"rank {rank.number} of {len(ranks)} failed: {rank.note}"
    return f"rank {rank.number} of {len(ranks)} {death(rank.status if rank.status is not None else -1)}"


def describe_others(ranks: Sequence[JobRank]) -> list[str]:
    """Say how the other ranks ended and what they were doing, with a line for each kind of end."""
    culprit = first_culprit(ranks)
    others = [rank for rank in ranks if rank is not culprit]
    too = [rank for rank in others if rank.is_culprit]
    lines = [f"  failed too  rank {rank.number}: {rank.note or death(rank.status or -1)}" for rank in too[:8]]
    freed = [rank for rank in others if rank.failed_at is not None and not rank.is_culprit]
    ended = [rank for rank in others if rank.failed_at is None and rank.sent and rank.status != 0]
    lines += [f"  freed       {text}" for text in _by_activity(freed, lambda rank: "")]
    lines += [f"  ended       {text}" for text in _by_activity(ended, lambda rank: f" by {_last_signal(rank)}")]
    return lines


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
        where = f", in {doing}" if doing else ", computing"
        groups.setdefault((suffix(rank), where), []).append(rank.number)
    return [f"{rank_list(numbers)}{end}{where}" for (end, where), numbers in groups.items()]
