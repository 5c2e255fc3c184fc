"""The last words about a job: who failed and why, and what became of the others."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable, Sequence

from phalanx.diagnosis.formatting import death, rank_list
from phalanx.jobs.job import Job
from phalanx.jobs.job_result import JobResult, first_culprit
from phalanx.jobs.rank import Rank


def describe_activity(rank: Rank) -> str:
    """Say what a rank does."""
    if rank.pid == 0:
        return "has not started"
    if rank.status is not None:
        return death(rank.status) if rank.status else "is done"
    if rank.note is not None:
        return f"ends because of {rank.note}"
    if not rank.doing:
        return "computes"
    return f"is in {rank.doing}" + (f", for {rank_list(rank.waits_for)}" if rank.waits_for else "")


def summarise(job: Job, outcome: JobResult) -> list[str]:
    """Say how a job ended that did not end well, in a few lines."""
    if outcome.signal is signal.SIGPIPE:
        return []  # nobody is there to read it
    headline = {
        "timeout": f"ended after {job.timeout_s or 0:.3g} s",
        "signal": f"ended by {outcome.signal.name if outcome.signal is not None else ''}",
        "lost": "the process that ranks are forked from was killed, and all ranks with it",
    }.get(outcome.kind) or describe_failure(outcome.ranks)
    others = describe_others(outcome.ranks)
    return [f"phalanx run: {headline}", *others, f"  exit code   {outcome.exit_code}"]


def describe_failure(ranks: Sequence[Rank]) -> str:
    """Say in a line which rank failed, and why."""
    rank = first_culprit(ranks)
    if rank is None:
        return "no rank failed"
    if rank.note is not None:
        return f"rank {rank.number} of {len(ranks)} failed: {rank.note}"
    return f"rank {rank.number} of {len(ranks)} {death(rank.status if rank.status is not None else -1)}"


def describe_others(ranks: Sequence[Rank]) -> list[str]:
    """Say what became of the other ranks, and what they were in, a line for each kind of end."""
    culprit = first_culprit(ranks)
    others = [rank for rank in ranks if rank is not culprit]
    too = [rank for rank in others if rank.is_culprit]
    lines = [f"  failed too  rank {rank.number}: {rank.note or death(rank.status or -1)}" for rank in too[:8]]
    freed = [rank for rank in others if rank.failed_at is not None and not rank.is_culprit]
    ended = [rank for rank in others if rank.failed_at is None and rank.sent and rank.status != 0]
    lines += [f"  freed       {text}" for text in _by_activity(freed, lambda rank: "")]
    lines += [f"  ended       {text}" for text in _by_activity(ended, lambda rank: f" by {_last_signal(rank)}")]
    return lines


def _last_signal(rank: Rank) -> str:
    if rank.status is not None and rank.status > 256:
        return signal.Signals(rank.status - 256).name
    return rank.sent[-1].name


def _by_activity(ranks: Iterable[Rank], suffix: Callable[[Rank], str]) -> list[str]:
    """Join ranks that did the same."""
    groups: dict[tuple[str, str], list[int]] = {}
    for rank in ranks:
        doing = (rank.note.doing if rank.note is not None else "") or rank.doing
        where = f", in {doing}" if doing else ", computing"
        groups.setdefault((suffix(rank), where), []).append(rank.number)
    return [f"{rank_list(numbers)}{end}{where}" for (end, where), numbers in groups.items()]
