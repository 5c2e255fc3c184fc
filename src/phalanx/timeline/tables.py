"""The text of the page: summary, tables and heat map. Names that come from programs are escaped."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from html import escape

from phalanx.byte_sizes import format_size
from phalanx.timeline import units
from phalanx.timeline.spans import Timeline
from phalanx.timeline.summary import RankWaits, Tally, count_waits, rank_list, tally
from phalanx.timeline.traffic import RULES, Matrix

_MOST_LINES = 20
_MOST_RANKS_IN_MATRIX = 64


def summary_html(timeline: Timeline, traffic: Matrix) -> str:
    """Show the size of the run in a few figures."""
    waits = count_waits(timeline)
    waited = sum(rank.share for rank in waits) / max(1, len(waits))
    num_events = len({span.event for span in timeline.spans})
    tiles = [
        ("Ranks", f"{len(timeline.ranks)}", units.count(len(timeline.groups), "group")),
        ("Duration", units.duration(timeline.duration_ns), "first start to last end"),
        ("Operations", f"{num_events:,}", f"{units.count(len(timeline.spans), 'call')} on all ranks"),
        ("Traffic", format_size(sum(traffic.values())), "between ranks, at least"),
        ("Waiting", f"{waited:.0%}", "of a rank's time, on average"),
    ]  # fmt: skip
    return "".join(
        f'<div class="tile"><div class="label">{label}</div><div class="value">{escape(value)}</div>'
        f'<div class="note">{escape(note)}</div></div>'
        for label, value, note in tiles
    )


def origin_html(timeline: Timeline) -> str:
    """Say when and where it was recorded."""
    hosts = sorted({process.host for process in timeline.processes if process.host})
    started = datetime.fromtimestamp(timeline.start_unix_ns / 1e9, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    return escape(", ".join([*hosts, started, rank_list(timeline.ranks)]))


def gaps_html(gaps: Sequence[str]) -> str:
    """Say how complete the recording is."""
    if not gaps:
        return '<p class="complete">The recording is complete: every rank recorded all its calls.</p>'
    items = "".join(f"<li>{escape(gap)}</li>" for gap in gaps)
    return f'<div class="gaps" role="note"><strong>The recording is not complete</strong><ul>{items}</ul></div>'


def waits_html(timeline: Timeline) -> str:
    """Show which ranks wait most, and for which rank."""
    heads = ["Rank", "Waited", "Share of the run", "Mostly for"]
    waits = count_waits(timeline)
    rows = [_waits_row(rank) for rank in waits]
    if any(rank.async_ns for rank in waits):
        heads.append("Only in async calls")
        for row, rank in zip(rows, waits, strict=True):
            row.append(units.duration(rank.async_ns))
    return _table("waits", heads, rows)


def _waits_row(waits: RankWaits) -> list[str]:
    culprit = f"rank {waits.for_rank} ({waits.for_rank_share:.0%})" if waits.for_rank is not None else ""
    culprit = culprit or ("not known" if waits.waited_ns else "nobody")
    return [f"rank {waits.rank}", units.duration(waits.waited_ns), _bar(waits.share), culprit]


def operations_html(timeline: Timeline) -> str:
    """Show calls, bytes and time by operation."""
    tallies = tally(timeline, lambda span: span.call.operation)
    whole_ns = sum(one.total_ns for one in tallies)
    heads = ["Operation", "Calls", "Bytes", "Time", "Share", "Of it waiting"]
    return _table("operations", heads, (
        [f'<span class="chip" style="--chip: var(--op-{escape(one.name)})"></span>{escape(one.name)}',
         *_numbers(one, whole_ns)]
        for one in tallies
    ))  # fmt: skip


def lines_html(timeline: Timeline) -> str:
    """Show the source lines that take most time."""
    tallies = tally(timeline, lambda span: span.place)
    whole_ns = sum(one.total_ns for one in tallies)
    heads = ["Line", "Calls", "Bytes", "Time", "Share", "Of it waiting"]
    rows = (
        [f'<span class="path">{escape(one.name)}</span>', *_numbers(one, whole_ns)] for one in tallies[:_MOST_LINES]
    )
    more = f"<p>The {_MOST_LINES} longest of {len(tallies)} lines.</p>" if len(tallies) > _MOST_LINES else ""
    return _table("lines", heads, rows) + more


def _numbers(one: Tally, whole_ns: int) -> list[str]:
    return [
        f"{one.num_calls:,}",
        format_size(one.size_bytes),
        units.duration(one.total_ns),
        _bar(one.total_ns / whole_ns if whole_ns else 0),
        f"{one.waited_ns / one.total_ns:.0%}" if one.total_ns else "",
    ]


def traffic_html(timeline: Timeline, traffic: Matrix) -> str:
    """Show the bytes between every two ranks as a heat map with numbers."""
    ranks = timeline.ranks[:_MOST_RANKS_IN_MATRIX]
    most = max(traffic.values(), default=0)
    head = "".join(f'<th scope="col">{rank}</th>' for rank in ranks)
    rows = "".join(
        f'<tr><th scope="row">{source}</th>'
        + "".join(_heat(source, to, traffic.get((source, to), 0), most) for to in ranks)
        + "</tr>"
        for source in ranks
    )
    hidden = len(timeline.ranks) - len(ranks)
    more = f"<p>{units.count(hidden, 'rank')} more than shown here.</p>" if hidden else ""
    table = f'<table id="traffic"><thead><tr><th>from \\ to</th>{head}</tr></thead><tbody>{rows}</tbody></table>'
    return f'<div class="scroll">{table}</div>{more}'


def rules_html() -> str:
    """Say how traffic is counted."""
    items = "".join(f"<dt>{escape(operation)}</dt><dd>{escape(rule)}</dd>" for operation, rule in RULES)
    return f"<dl>{items}</dl>"


def _heat(source: int, destination: int, size_bytes: float, most: float) -> str:
    if source == destination and not size_bytes:
        return '<td class="self"></td>'
    heat = size_bytes / most if most else 0
    hot = ' class="hot"' if heat > 0.88 else ""
    title = f"rank {source} to rank {destination}: {size_bytes:,.0f} bytes"
    text = format_size(size_bytes) if size_bytes else "0"
    return f'<td{hot} style="--heat: {heat:.3f}" title="{title}">{text}</td>'


def _bar(share: float) -> str:
    return f'<span class="bar" style="--share: {min(share, 1):.4f}"></span><span class="percent">{share:.1%}</span>'


def _table(name: str, heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    head = "".join(f'<th scope="col">{text}</th>' for text in heads)
    body = "".join(
        f'<tr><th scope="row">{first}</th>' + "".join(f"<td>{cell}</td>" for cell in rest) + "</tr>"
        for first, *rest in rows
    )
    table = f'<table id="{name}"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'
    return f'<div class="scroll">{table}</div>'
