"""Give every span a row in which nothing overlaps: one per rank and group, more where async calls overlap."""

from __future__ import annotations

from dataclasses import dataclass, field

from phalanx.timeline.spans import Group, Span, Timeline


@dataclass(slots=True, eq=False)
class Row:
    """Spans of one rank in one group, by start, none overlapping."""

    rank: int
    group: Group
    label: str
    spans: list[Span] = field(default_factory=list)


def make_rows(timeline: Timeline) -> list[Row]:
    """Put all spans into rows, ordered by rank, then by group."""
    order = {group: index for index, group in enumerate(timeline.groups)}
    rows: dict[tuple[int, Group], list[Row]] = {}
    for span in timeline.spans:
        lanes = rows.setdefault((span.rank, span.group), [])
        _lane(lanes, span).spans.append(span)
    ordered = sorted(rows.items(), key=lambda item: (item[0][0], order[item[0][1]]))
    return [row for _, lanes in ordered for row in lanes]


def _lane(lanes: list[Row], span: Span) -> Row:
    for row in lanes:
        if row.spans[-1].end_ns <= span.start_ns:
            return row
    label = span.group.label if not lanes else f"{span.group.label} ({len(lanes) + 1})"
    lanes.append(Row(span.rank, span.group, label))
    return lanes[-1]
