"""The ranks of a job as a table that fits the screen."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from rich.console import Group
from rich.table import Table
from rich.text import Text

from phalanx.diagnosis.formatting import rank_list, title
from phalanx.jobs.rank import JobRank, State

_STYLES: dict[State, str] = {
    "starting": "dim",
    "running": "green",
    "waiting": "yellow",
    "done": "dim",
    "failed": "bold red",
    "freed": "red",
    "ended": "red",
}
_INTEREST: tuple[State, ...] = ("failed", "freed", "ended", "running", "starting", "waiting", "done")
_NARROW = 110
_LEAST_ROWS = 3
_AROUND_ROWS = 3  # title, heads of columns, and what is left out
_NOT_TEXT = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|[\x00-\x1f\x7f]")


def make_table(ranks: Sequence[JobRank], title: str, width: int, height: int) -> Group:
    """Return the table; if it has too many ranks, the interesting ones and a line about the others."""
    shown = choose_ranks(ranks, max(_LEAST_ROWS, height * 2 // 3 - _AROUND_ROWS))
    table = Table(box=None, expand=True, padding=(0, 1, 0, 0), header_style="dim")
    table.add_column("rank", justify="right", no_wrap=True)
    table.add_column("state", no_wrap=True, width=8)
    table.add_column("operation", no_wrap=True, overflow="ellipsis", ratio=3)
    table.add_column("ops/s", justify="right", no_wrap=True, min_width=5)
    table.add_column("bytes/s", justify="right", no_wrap=True, min_width=7)
    table.add_column("memory", justify="right", no_wrap=True, min_width=6)
    table.add_column("last output", no_wrap=True, overflow="ellipsis", ratio=2 if width < _NARROW else 3)
    for rank in shown:
        table.add_row(*_cells(rank, is_narrow=width < _NARROW))
    rest = [rank for rank in ranks if rank not in shown]
    parts: list[Text | Table] = [Text(title, style="bold", no_wrap=True, overflow="ellipsis"), table]
    if rest:
        parts.append(Text(_describe_rest(rest), style="dim", no_wrap=True, overflow="ellipsis"))
    return Group(*parts)


def choose_ranks(ranks: Sequence[JobRank], limit: int) -> list[JobRank]:
    """Return at most `limit` ranks, in rank order; failed ranks are chosen first, then ranks that others wait for."""
    if len(ranks) <= limit:
        return list(ranks)
    awaited = Counter(number for rank in ranks if rank.state == "waiting" for number in rank.waits_for)

    def interest(rank: JobRank) -> tuple[bool, int, int, int]:
        has_failed = rank.state in ("failed", "freed", "ended")
        return not has_failed, -awaited[rank.number], _INTEREST.index(rank.state), rank.number

    return sorted(sorted(ranks, key=interest)[:limit], key=lambda rank: rank.number)


def _cells(rank: JobRank, *, is_narrow: bool) -> list[Text]:
    is_busy = rank.is_running
    return [
        Text(str(rank.number)),
        Text(rank.state, style=_STYLES[rank.state]),
        Text(_describe_operation(rank, is_narrow)),
        Text(_short_number(rank.operations_per_s) if is_busy else ""),
        Text(_short_bytes(rank.bytes_per_s) if is_busy else ""),
        Text(_short_bytes(rank.memory_bytes) if is_busy else ""),
        Text(_NOT_TEXT.sub("", rank.last_line[:400].decode(errors="replace")), style="dim"),
    ]


def _describe_operation(rank: JobRank, is_narrow: bool) -> str:
    if rank.note is not None:
        return str(rank.note)
    if rank.doing is None or not rank.is_running:
        return ""
    what, where = title(rank.doing), rank.doing.location.rpartition("/")[2]
    doing = f"{what}, {where}" if where else what
    if not rank.waits_for:
        return doing
    return f"{what if is_narrow else doing + ','} for {rank_list(rank.waits_for)}"  # the rank says more than the line


def _describe_rest(rest: Sequence[JobRank]) -> str:
    counts = Counter(rank.state for rank in rest)
    counted = ", ".join(f"{counts[state]} {state}" for state in _INTEREST if counts[state])
    return f"and {len(rest)} more: {counted}"


def _short_number(value: float) -> str:
    if value < 0.5:
        return ""
    return f"{value:.0f}" if value < 9_999.5 else f"{value / 1000:.0f}k"


def _short_bytes(value: float) -> str:
    for unit in ("B", "KB", "MB", "GB", "TB"):
        if value < 999.5:
            return "" if value < 1 else f"{value:.0f}{unit}" if value >= 9.95 or unit == "B" else f"{value:.1f}{unit}"
        value /= 1000
    return f"{value:.0f}PB"
