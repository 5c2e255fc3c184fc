"""The table of collectives: what it says of rows that miss their goal."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from phalanx_tools.bench.report import asked_of_gloo, print_table


def _row(contender: str, median_s: float, size: int = 64 << 20) -> dict[str, Any]:
    spread = {"median_s": median_s, "p10_s": median_s, "p90_s": median_s, "correct": True}
    return {"operation": "all_to_all", "ranks": 2, "bytes": size, "contender": contender, **spread}


def _told(*rows: dict[str, Any], start: str = "below the asked ratio to gloo (") -> str:
    out = io.StringIO()
    print_table(Console(file=out, width=300), rows)
    return next(line for line in out.getvalue().splitlines() if line.startswith(start))


def test_a_row_that_misses_its_goal_is_counted() -> None:
    assert ": 1 of 1 rows; in 0 of them" in _told(_row("phalanx", 0.3), _row("gloo", 1.0), _row("copy", 0.2))


def test_a_plain_copy_that_would_miss_it_too_is_told() -> None:
    assert ": 1 of 1 rows; in 1 of them" in _told(_row("phalanx", 0.3), _row("gloo", 1.0), _row("copy", 0.26))


def test_a_row_that_reaches_its_goal_is_not_counted() -> None:
    assert ": 0 of 1 rows; in 0 of them" in _told(_row("phalanx", 0.2), _row("gloo", 1.0), _row("copy", 0.5))


@pytest.mark.parametrize(
    ("size", "ours", "torch_alone", "copy", "short", "bounded"),
    [
        (4, 1 / 29, 1 / 31, 1 / 300, 1, 0),
        (4, 1 / 29, 1 / 29, 1 / 300, 1, 1),
        (4, 1 / 31, 1 / 29, 1 / 300, 0, 0),
        (1 << 20, 1 / 3, None, 1 / 5, 1, 0),
        (1 << 20, 1 / 3, None, 1 / 3, 1, 1),
    ],
)
def test_what_torch_itself_takes_is_told(
    size: int, ours: float, torch_alone: float | None, copy: float, short: int, bounded: int
) -> None:
    rows = [_row("phalanx", 0.001, size), _row("phalanx_torch", ours, size), _row("gloo", 1.0, size)]
    rows += [_row("copy", copy, size), *([_row("torch_alone", torch_alone, size)] if torch_alone else [])]
    told = _told(*rows, start="below the asked ratio to gloo through torch")
    assert f": {short} of 1 rows; in {bounded} of them" in told


@pytest.mark.parametrize(("size", "asked"), [(4, 100), (4096, 100), (65536, 20), (1 << 20, 4)])
def test_goals_by_size(size: int, asked: float) -> None:
    assert asked_of_gloo(size) == asked
