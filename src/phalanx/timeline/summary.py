"""The figures of a timeline: which rank waits most and for which, time and bytes by operation, and what is missing."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from phalanx.timeline import units
from phalanx.timeline.spans import NO_GROUP, Process, Span, Timeline


@dataclass(frozen=True, slots=True)
class RankWaits:
    """How long one rank waited, and for which rank most.

    Attributes:
        rank: The rank that waited.
        waited_ns: Its total waiting time; moments in which it waited in several calls count once.
        async_ns: The part of it in which only async calls waited, so the program may have computed.
        share: Its share of the whole recording.
        for_rank: The rank that it waited for longest, or None.
        for_rank_share: The share of its waiting that was for that rank.
    """

    rank: int
    waited_ns: int
    async_ns: int
    share: float
    for_rank: int | None
    for_rank_share: float


@dataclass(frozen=True, slots=True)
class Tally:
    """The sum over all calls, on all ranks, with the same operation or the same source line."""

    name: str
    num_calls: int
    size_bytes: int
    total_ns: int
    waited_ns: int


def count_waits(timeline: Timeline) -> list[RankWaits]:
    """Sum up waiting by rank, the longest first."""
    spans: dict[int, list[Span]] = {rank: [] for rank in timeline.ranks}
    for span in timeline.spans:
        if span.waited_ns:
            spans[span.rank].append(span)
    waits = [_waits_of(rank, waiting, timeline.duration_ns) for rank, waiting in spans.items()]
    return sorted(waits, key=lambda waits: (-waits.waited_ns, waits.rank))


def _waits_of(rank: int, spans: Sequence[Span], duration_ns: int) -> RankWaits:
    waited_ns = _union_ns(spans)
    blocking_ns = _union_ns([span for span in spans if not span.call.is_async])
    culprits: Counter[int] = Counter()
    for span in spans:
        if span.waited_for is not None:
            culprits[span.waited_for] += span.waited_ns
    for_rank, for_rank_ns = min(culprits.items(), key=lambda item: (-item[1], item[0]), default=(None, 0))
    share = waited_ns / duration_ns if duration_ns else 0.0
    part = for_rank_ns / culprits.total() if for_rank_ns else 0.0
    return RankWaits(rank, waited_ns, waited_ns - blocking_ns, share, for_rank, part)


def _union_ns(spans: Iterable[Span]) -> int:
    """Measure the time in which at least one of the spans, sorted by start, waited."""
    total_ns = until_ns = 0
    for span in spans:
        end_ns = span.start_ns + span.waited_ns
        total_ns += max(0, end_ns - max(until_ns, span.start_ns))
        until_ns = max(until_ns, end_ns)
    return total_ns


def tally(timeline: Timeline, name_of: Callable[[Span], str]) -> list[Tally]:
    """Sum up calls by a name, the longest first, without those whose name is empty."""
    spans: dict[str, list[Span]] = defaultdict(list)
    for span in timeline.spans:
        spans[name_of(span)].append(span)
    spans.pop("", None)
    tallies = [
        Tally(
            name=name,
            num_calls=len(calls),
            size_bytes=sum(span.call.size_bytes for span in calls),
            total_ns=sum(span.duration_ns for span in calls),
            waited_ns=sum(span.waited_ns for span in calls),
        )
        for name, calls in spans.items()
    ]
    return sorted(tallies, key=lambda tally: (-tally.total_ns, tally.name))


def describe_gaps(timeline: Timeline) -> list[str]:
    """Describe what the recording lacks, because a rank was killed, a disk was full, or a file is missing."""
    gaps = [] if timeline.spans else [f"There is no call in this recording. {_why_no_call(timeline)}."]
    gaps += [text for process in timeline.processes for text in _gaps_of(process)]
    unfinished: dict[int, list[Span]] = defaultdict(list)
    for span in timeline.spans:
        if not span.is_finished:
            unfinished[span.rank].append(span)
    gaps += [_never_left(spans) for spans in unfinished.values()]
    for group in timeline.groups:
        absent = group.num_ranks - len(group.members)
        if absent:
            lacking = [rank for rank in range(group.num_ranks) if rank not in group.members]
            text = f'Group "{group.label}" has {group.num_ranks} ranks. '
            gaps.append(f"{text}There is no recording of {rank_list(lacking)}.")
    num_lost = _num_lost(timeline)
    if num_lost:
        gaps.append(f"This recording has no receive for {units.count(num_lost, 'sent message')}.")
    if timeline.clocks_differ:
        gaps.append("The files come from different machines or boots: times of different ranks can't be compared.")
    return gaps


def _why_no_call(timeline: Timeline) -> str:
    if timeline.groups:
        return "The ranks made groups, but called no operation"
    return NO_GROUP if not timeline.processes else "No rank that recorded had a group"


def _gaps_of(process: Process) -> list[str]:
    who = f"Rank {process.rank} (pid {process.pid})"
    if process.is_empty:
        return [f"{who} recorded nothing: it ended before its first call."]
    if process.is_truncated:
        return [f"{who} could not record everything, because the disk was full: its later calls are missing."]
    if process.is_cut:
        return [f"The file of rank {process.rank}, {process.file_name}, ends in the middle of a record."]
    return []


def _never_left(spans: Sequence[Span]) -> str:
    span = spans[0]
    where = f", {span.place}" if span.place else ""
    more = f" and from {units.count(len(spans) - 1, 'other call')}" if len(spans) > 1 else ""
    call = f'{span.call.operation} #{span.number} of group "{span.group.label}"{where}{more}'
    return f"Rank {span.rank} never returned from {call}: it was killed, or still ran when the recording ended."


def _num_lost(timeline: Timeline) -> int:
    received = {span.event for span in timeline.spans if span.call.operation == "recv"}
    return sum(
        span.call.operation == "send" and span.event not in received and span.peer in span.group.members
        for span in timeline.spans
    )


def rank_list(ranks: Iterable[int]) -> str:
    """Write ranks as "rank 3" or "ranks 0-2, 5"."""
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    text = ", ".join(f"{run[0]}" if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
    return f"ranks {text}" if sum(map(len, runs)) > 1 else f"rank {text}"
