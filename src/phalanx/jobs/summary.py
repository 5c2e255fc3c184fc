"""The last lines about a job: which rank failed and why, and how the other ranks ended."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from phalanx.diagnosis.formatting import advice_about_death, death, operation, rank_list
from phalanx.diagnosis.sides import describe_doubt, find_minority
from phalanx.jobs.job import Job
from phalanx.jobs.job_result import JobResult
from phalanx.jobs.notes import Note
from phalanx.jobs.rank import JobRank
from phalanx.launch.rank import first_culprit

if TYPE_CHECKING:
    from phalanx.diagnosis.observation import Observation

_MOST_LINES = 3  # about ranks of one kind of end


def describe_activity(rank: JobRank, *, is_python: bool = True) -> str:
    """Describe what a rank is doing."""
    if rank.pid == 0:
        return "has not started"
    if rank.status is not None:
        return death(rank.status) if rank.status else "is done"
    if rank.note is not None:
        return f"ends because of {rank.note}"
    if rank.doing is None:
        unknown = "runs, and did not say where" if is_python else "runs its executable; phalanx can't see where that is"
        return f"is at {rank.place}" if rank.place else unknown
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
    verdict = outcome.verdict
    culprit = first_culprit(outcome.ranks) if headline is None else None
    if outcome.is_elsewhere:
        culprit = None
    first = f"phalanx run: {headline or (verdict.text if verdict is not None else describe_failure(outcome.ranks))}"
    lines = [first, *_describe_ends(job, outcome, culprit), *places]
    whose = "" if culprit is None else f", of {_name(culprit, outcome.ranks)}"
    if verdict is not None and culprit is None and verdict.rank is not None and headline is None:
        whose = f", of rank {verdict.rank}"
    return [*lines, f"  exit code   {outcome.exit_code}{whose}"]


def summarise_attempt(job: Job, outcome: JobResult, number: int, places: Sequence[str]) -> list[str]:
    """Return a few lines that say how an attempt failed after which all ranks start again for the `number`-th time."""
    again = f"all ranks start again ({number} of {job.max_restarts})"
    ends = _describe_ends(job, outcome, None if outcome.is_elsewhere else first_culprit(outcome.ranks))
    why = describe_failure(outcome.ranks) if outcome.verdict is None else outcome.verdict.text
    return [f"phalanx run: {why}; {again}", *ends, *places]


def _describe_ends(job: Job, outcome: JobResult, culprit: JobRank | None) -> list[str]:
    if culprit is None:
        return describe_others(outcome.ranks, is_elsewhere=outcome.is_elsewhere)
    notes = [rank.note for rank in outcome.ranks if rank.note is not None]
    is_python = job.program.kind != "executable"
    return [*describe_cause(culprit, outcome.seen, notes, is_python=is_python), *describe_others(outcome.ranks)]


def describe_failure(ranks: Sequence[JobRank], num_ranks: int = 0, where: str = "") -> str:
    """Return a line that says which rank failed, and why; or which ranks, if several failed alike.

    Args:
        ranks: The ranks of this host.
        num_ranks: How many ranks the job has, if there are other hosts.
        where: On which host the ranks are, if there are several.
    """
    rank = first_culprit(ranks)
    if rank is None:
        return "no rank failed"
    failed = [rank.number, *(other.number for other in _alike(rank, ranks))]
    if rank.note is None:
        why = death(rank.status if rank.status is not None else -1)
    elif _are_on_par(rank, rank):  # such ranks are at several places, which other lines name
        why = f"failed{_because_of(rank, len(ranks))}: {rank.note.text}"
    else:
        why = f"failed: {rank.note}"
    return f"{rank_list(failed)} of {num_ranks or len(ranks)}{where} {why}"


def _because_of(rank: JobRank, num_ranks: int) -> str:
    """Name the ranks that are wrong, if only ranks that are right have failed."""
    known = rank.disagreement
    wrong = find_minority(known.sides, known.num_ranks) if known is not None else ()
    if known is None or not wrong:
        return ""
    return f" because of {rank_list(wrong)}" + (" of the group" if known.num_ranks != num_ranks else "")


def describe_cause(rank: JobRank, seen: Observation | None, notes: Sequence[Note], *, is_python: bool) -> list[str]:
    """Say what the traceback of the first rank that failed does not say, or the terminal does not show.

    Args:
        rank: That rank.
        seen: What was seen when it failed.
        notes: The notes of all ranks; they also say what ranks that have died did last.
        is_python: Whether it ran a Python program.
    """
    if rank.note is not None:
        known = rank.note.details
        lines = [(label, _settle_doubt(text, rank) if label == "unknown" else text) for label, text in known]
        return [_line(label, text) for label, text in lines if text]
    last = _last_call(rank, seen) or next((note.last_call for note in notes if note.dead_pid == rank.pid), "")
    advice = advice_about_death(rank.status if rank.status is not None else -1) if is_python else ""
    return [_line(label, text) for label, text in (("last", last), ("do", advice)) if text]


def _settle_doubt(text: str, rank: JobRank) -> str:
    """Return what is to be said instead of a rank's doubt, as the ranks that came later know more."""
    known = rank.disagreement
    if known is None or not (known.is_decided or sum(map(len, known.sides)) == known.num_ranks):
        return text
    return describe_doubt(known.sides, known.num_ranks)


def _last_call(rank: JobRank, seen: Observation | None) -> str:
    """Say in which collective a rank was that has died, or which was its last."""
    rows = [row for view in (seen.groups if seen is not None else ()) for row in view.rows if row.any_pid == rank.pid]
    called = [row for row in rows if row.entry is not None]
    if not called:
        return ""
    row = min(called, key=lambda row: row.entry.seconds_ago if row.entry is not None else 0.0)
    assert row.entry is not None
    return f"{'in' if row.finished < row.arrived else 'after'} {operation(row.entry)}"


def describe_others(ranks: Sequence[JobRank], *, is_elsewhere: bool = False) -> list[str]:
    """Say how the other ranks ended and what they were doing, with a line for each kind of end.

    Args:
        ranks: The ranks of this host.
        is_elsewhere: Whether none of them is to blame.
    """
    culprit = None if is_elsewhere else first_culprit(ranks)
    alike = [] if culprit is None else _alike(culprit, ranks)
    others = [rank for rank in ranks if rank is not culprit and rank not in alike]
    too = [rank for rank in others if rank.is_culprit]
    freed = [rank for rank in others if rank.failed_at is not None and not rank.is_culprit]
    ended = [rank for rank in others if rank.failed_at is None and rank.sent and rank.status != 0]
    lines = [_line("failed too", text) for text in _shorten(_describe_failures(too), too)]
    same_trace = [rank.number for rank in alike if culprit is not None and _is_same_failure(rank, culprit)]
    if culprit is not None and culprit.has_shown and same_trace:
        same = f"that of rank {culprit.number} is above; {rank_list(same_trace)}: the same"
        lines.append(_line("traceback", same))
    lines += [_line("freed", text) for text in _shorten(_by_activity(freed, lambda rank: ""), freed)]
    lines += [
        _line("ended", text) for text in _shorten(_by_activity(ended, lambda rank: f" by {_last_signal(rank)}"), ended)
    ]
    return lines


def _alike(culprit: JobRank, ranks: Sequence[JobRank]) -> list[JobRank]:
    """Return the other ranks that failed with the same error at the same place, or in the same mismatch."""
    others = [rank for rank in ranks if rank is not culprit]
    return [rank for rank in others if _is_same_failure(rank, culprit) or _are_on_par(rank, culprit)]


def _is_same_failure(rank: JobRank, other: JobRank) -> bool:
    if rank.note is None or other.note is None or not rank.is_culprit:
        return False
    return (rank.note.identity, str(rank.note)) == (other.note.identity, str(other.note))


def _are_on_par(rank: JobRank, other: JobRank) -> bool:
    """Tell whether two ranks failed in one mismatch, and neither is more to blame: both are right, or nobody knows."""
    mine, others = rank.disagreement, other.disagreement
    if mine is None or others is None or mine.operation != others.operation or rank.failed_at is None:
        return False
    return not mine.is_decided or (mine.is_right and others.is_right)


def _name(culprit: JobRank, ranks: Sequence[JobRank]) -> str:
    """Name the rank whose exit code counts; in a mismatch, name all ranks that are as much to blame."""
    return rank_list(rank.number for rank in ranks if rank is culprit or _are_on_par(rank, culprit))


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
