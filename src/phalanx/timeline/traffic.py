"""How many bytes each rank must get from each other rank at the least, whichever algorithm the engine uses.

For collectives this is the least that any algorithm must move between a pair of n ranks, B being the `size_bytes` of
a call: the tensor in all_reduce, reduce and broadcast, all that a rank sends in all_to_all, one rank's block in others.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator

from phalanx.timeline.spans import Span, Timeline, TracedGroup

RULES = (
    ("all_reduce", "2 B / n between every two ranks, each way"),
    ("all_gather", "B, the sender's block, between every two ranks, each way"),
    ("all_to_all", "B / n, an n-th of what the sender gives, between every two ranks, each way"),
    ("reduce_scatter", "B, the receiver's block, between every two ranks, each way"),
    ("broadcast, scatter", "B from the root to every other rank"),
    ("reduce, gather", "B from every other rank to the root"),
    ("barrier", "nothing"),
    ("send, recv", "what was sent"),
)

Matrix = dict[tuple[int, int], float]
# Equal collectives are computed once and multiplied. The key is group, operation, root and bytes by rank.
_Kind = tuple[TracedGroup, str, "int | None", tuple[tuple[int, int], ...]]


def count_traffic(timeline: Timeline) -> Matrix:
    """Sum up bytes by (from, to), both world ranks. Calls that never returned on any rank count as 0."""
    matrix: Matrix = defaultdict(float)
    events: dict[int, list[Span]] = defaultdict(list)
    for span in timeline.spans:
        if span.is_finished:
            events[span.event].append(span)
    for spans in events.values():
        if spans[0].call.tag is not None:
            _add_message(matrix, spans[0])
    for kind, count in Counter(map(_kind, events.values())).items():
        members = kind[0].members
        for source, destination, size_bytes in _pairs(kind):
            matrix[members[source], members[destination]] += size_bytes * count
    return {pair: size_bytes for pair, size_bytes in matrix.items() if size_bytes}


def _kind(spans: list[Span]) -> _Kind:
    first = spans[0]
    sizes = tuple(sorted((span.group_rank, span.call.size_bytes) for span in spans))
    return first.group, first.call.operation, first.call.root, sizes


def _add_message(matrix: Matrix, span: Span) -> None:
    other = span.group.members.get(span.peer)
    if other is None:
        return
    way = (span.rank, other) if span.call.operation == "send" else (other, span.rank)
    matrix[way] += span.call.size_bytes


def _pairs(kind: _Kind) -> Iterator[tuple[int, int, float]]:
    group, operation, root, sizes = kind
    for source, sent in sizes:
        for destination, got in sizes:
            if source != destination:
                yield source, destination, _between(operation, source == root, destination == root, sent, got, group)


def _between(operation: str, is_from_root: bool, is_to_root: bool, sent: int, got: int, group: TracedGroup) -> float:
    match operation:
        case "all_reduce" | "all_to_all":
            return (2 if operation == "all_reduce" else 1) * sent / group.num_ranks
        case "all_gather":
            return sent
        case "reduce_scatter":
            return got
        case "broadcast" | "scatter":
            return got if is_from_root else 0
        case "reduce" | "gather":
            return sent if is_to_root else 0
    return 0
