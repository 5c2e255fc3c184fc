"""The table and the record of a comparison over hosts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from phalanx_tools.bench.hosts.measure import Network, Row

_OURS = ("phalanx", "phalanx_torch")
_MPIS = ("openmpi", "openmpi_no_han", "mpich")


def print_table(console: Console, network: Network, rows: Sequence[Row]) -> None:
    """Print the median of each contender, and how many times faster phalanx is than Gloo and the better MPI."""
    names = list(dict.fromkeys(row.contender for row in rows))
    table = Table(title=_title(network), title_justify="left")
    table.add_column("operation", no_wrap=True)
    for column in ("size", *names, "x gloo", "x mpi"):
        table.add_column(column, justify="right", no_wrap=True)
    for (operation, size), row_of in _by_case(rows).items():
        cells = [_cell(row_of[name]) if name in row_of else "-" for name in names]
        table.add_row(operation, _size(size), *cells, _ratio(row_of, ("gloo",)), _ratio(row_of, _MPIS))
    console.print(table)


def print_bytes(console: Console, rows: Sequence[Row]) -> None:
    """Print the bytes that a host sends for one operation, as multiples of what it must send at least."""
    names = list(dict.fromkeys(row.contender for row in rows))
    table = Table(title="bytes that the busiest host sends, with headers; x: times the least possible")
    table.title_justify = "left"
    table.add_column("operation", no_wrap=True)
    for column in ("size", "least", *names):
        table.add_column(column, justify="right", no_wrap=True)
    for (operation, size), row_of in _by_case(rows).items():
        least = next(iter(row_of.values())).least_bytes
        cells = [_bytes_cell(row_of[name]) if name in row_of else "-" for name in names]
        table.add_row(operation, _size(size), _size(round(least)), *cells)
    console.print(table)


def to_record(
    network: Network, rows: Sequence[Row], machine: dict[str, Any], versions: dict[str, str]
) -> dict[str, Any]:
    """Return everything in types that JSON has."""
    link = {"hosts": network.num_hosts, "ranks_per_host": network.ranks_per_host, "rate": network.rate}
    link["delay_us"] = network.delay_us
    return {"machine": machine, "network": link, "versions": versions, "rows": [row.to_json() for row in rows]}


def _title(network: Network) -> str:
    return (
        f"{network.num_hosts} hosts x {network.ranks_per_host} ranks, {network.rate}, {network.delay_us:g} us one way: "
        "median time of one operation; x: times phalanx is faster"
    )


def _by_case(rows: Sequence[Row]) -> dict[tuple[str, int], dict[str, Row]]:
    cases: dict[tuple[str, int], dict[str, Row]] = {}
    for row in rows:
        cases.setdefault((row.operation, row.bytes), {})[row.contender] = row
    return cases


def _ratio(row_of: dict[str, Row], rivals: tuple[str, ...]) -> str:
    ours = next((row_of[name] for name in _OURS if name in row_of), None)
    others = [row_of[name].median_s for name in rivals if name in row_of]
    if ours is None or not others:
        return "-"
    ratio = min(others) / ours.median_s
    return f"{ratio:.3g}" if ratio >= 1 else f"[red]{ratio:.3g}"


def _cell(row: Row) -> str:
    return _time(row.median_s) + ("" if row.is_correct else " WRONG")


def _bytes_cell(row: Row) -> str:
    shown = _size(round(row.sent_bytes))
    return f"{shown} {row.sent_bytes / row.least_bytes:.2f}x" if row.least_bytes >= 1 << 16 else shown


def _time(seconds: float) -> str:
    return (
        f"{seconds * 1e6:.0f} us"
        if seconds < 1e-3
        else f"{seconds * 1e3:.2f} ms"
        if seconds < 1
        else f"{seconds:.2f} s"
    )


def _size(count: int) -> str:
    for unit, scale in (("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= scale:
            return f"{count / scale:.4g} {unit}"
    return f"{count} B" if count else "-"
