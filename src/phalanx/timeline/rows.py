"""Put spans into rows without overlaps: one row per rank and group, and more if async calls overlap."""

from __future__ import annotations

from dataclasses import dataclass, field

from phalanx.timeline.spans import Span, Timeline, TracedGroup


@dataclass(slots=True, eq=False)
class Row:
    """Spans of one rank in one group, ordered by start, without overlaps."""

    rank: int
    group: TracedGroup
    label: str
    spans: list[Span] = field(default_factory=list)


def make_rows(timeline: Timeline) -> list[Row]:
    """Put all spans into rows, ordered by rank, then by group."""
    order = {group: index for index, group in enumerate(timeline.groups)}
    rows: dict[tuple[int, TracedGroup], list[Row]] = {}
    for span in timeline.spans:
        of_group = rows.setdefault((span.rank, span.group), [])
        _free_row(of_group, span).spans.append(span)
    ordered = sorted(rows.items(), key=lambda item: (item[0][0], order[item[0][1]]))
    return [row for _, of_group in ordered for row in of_group]


def _free_row(of_group: list[Row], span: Span) -> Row:
    for row in of_group:
        if row.spans[-1].end_ns <= span.start_ns:
            return row
    label = span.group.label if not of_group else f"{span.group.label} ({len(of_group) + 1})"
    of_group.append(Row(span.rank, span.group, label))
    return of_group[-1]
