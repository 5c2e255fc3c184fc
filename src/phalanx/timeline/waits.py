"""Find the spans that belong together, the rank that called last, and how long each rank waited for it.

A call waits from its own start until the last rank that it needs has made its call. Ranks that called only after it had
ended do not count. Not every call needs all ranks:

- broadcast, scatter, gather: ranks other than the root wait for the root only;
- recv and send wait for the other end of the message.

If a rank that is needed never made the call, the others waited for it until their own calls ended. The same holds for a
message without another end.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from phalanx.timeline.spans import Span, Timeline, TracedGroup

_WAIT_FOR_ROOT = ("broadcast", "scatter", "gather")


def find_waits(timeline: Timeline) -> None:
    """Fill in `waited_ns`, `waited_for` and `event` of every span."""
    collectives: dict[tuple[TracedGroup, int], list[Span]] = defaultdict(list)
    for span in timeline.spans:
        if span.call.operation not in ("send", "recv"):
            collectives[span.group, span.number].append(span)
    incomplete = {process.rank for process in timeline.processes if process.is_truncated or process.is_cut}
    last_numbers = _last_numbers(timeline.spans)
    num_events = 0
    for (group, number), spans in collectives.items():
        missing = [
            rank
            for group_rank, rank in group.members.items()
            if len(spans) < group.num_ranks
            and rank not in incomplete
            # A rank that recorded a later operation only began to record later.
            and last_numbers.get((group, group_rank), -1) < number
        ]
        for span in spans:
            _find_wait(span, spans, missing)
            span.event = num_events
        num_events += 1
    for pair in match_messages(timeline.spans):
        for span in pair:
            _find_wait(span, pair, [])
            span.event = num_events
        num_events += 1


def match_messages(spans: Sequence[Span]) -> list[list[Span]]:
    """Pair the k-th send of one rank to another, with one tag, with the k-th receive; the others stay unmatched."""
    Way = tuple[TracedGroup, int, int, int | None]
    sends: dict[Way, list[Span]] = defaultdict(list)
    receives: dict[Way, list[Span]] = defaultdict(list)
    alone = []
    for span in sorted(spans, key=lambda span: (span.start_ns, span.number)):
        if span.call.operation == "send":
            sends[span.group, span.group_rank, span.peer, span.call.tag].append(span)
        elif span.call.operation == "recv" and span.peer >= 0 and span.is_finished:
            receives[span.group, span.peer, span.group_rank, span.call.tag].append(span)
        elif span.call.operation == "recv":
            alone.append([span])
    pairs = []
    for way in sends.keys() | receives.keys():
        there, back = sends[way], receives[way]
        pairs += [list(pair) for pair in zip(there, back, strict=False)]
        rest = there[len(back) :] + back[len(there) :]
        pairs += [[span] for span in rest]
    return sorted(pairs + alone, key=lambda pair: pair[0].start_ns)


def _last_numbers(spans: Sequence[Span]) -> dict[tuple[TracedGroup, int], int]:
    last: dict[tuple[TracedGroup, int], int] = {}
    for span in spans:
        if span.call.operation not in ("send", "recv"):
            key = (span.group, span.group_rank)
            last[key] = max(last.get(key, 0), span.number)
    return last


def _find_wait(span: Span, mates: Sequence[Span], missing: Sequence[int]) -> None:
    root = span.call.root
    if span.call.operation in _WAIT_FOR_ROOT and root != span.group_rank:
        mates = [mate for mate in mates if mate.group_rank == root]
        missing = [rank for rank in missing if rank == span.group.members.get(root if root is not None else -1)]
    if missing:
        span.waited_ns, span.waited_for = span.duration_ns, missing[0]
        return
    last = max((mate for mate in mates if span.start_ns < mate.start_ns <= span.end_ns),
               key=lambda mate: mate.start_ns, default=None)  # fmt: skip
    if last is not None:
        span.waited_ns, span.waited_for = last.start_ns - span.start_ns, last.rank
    elif not span.is_finished and len(mates) == 1 and span.call.tag is not None:
        span.waited_ns, span.waited_for = span.duration_ns, span.group.members.get(span.peer)
