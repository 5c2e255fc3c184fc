"""Run the whole matrix, or a part of it, and write it as a table: the command `./dev faults`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from phalanx_tools.conformance.faults.cell import Cell, Run
from phalanx_tools.conformance.faults.faults import FAULTS, has_meaning
from phalanx_tools.conformance.faults.operations import OPERATIONS
from phalanx_tools.conformance.faults.program import run_cell
from phalanx_tools.conformance.faults.verdicts import find_flaws

NAMED, NOT_NAMED, HARMLESS, NO_MEANING = "+", "x", "o", "-"


@dataclass(frozen=True)
class CellResult:
    """A cell that was run."""

    cell: Cell
    run: Run
    flaws: tuple[str, ...]
    seconds: float

    @property
    def mark(self) -> str:
        """What the table shows."""
        if self.flaws:
            return NOT_NAMED
        return HARMLESS if self.cell.is_harmless else NAMED

    @property
    def is_counted(self) -> bool:
        """Whether there was somebody to name, or somebody was named wrongly."""
        return self.mark != HARMLESS


def list_cells(
    *, operations: Sequence[str] = (), faults: Sequence[str] = (), doors: Sequence[str] = (), forms: Sequence[str] = ()
) -> list[Cell]:
    """Return the cells with these names, all where none is given."""
    return [
        Cell(operation, form, fault)
        for operation in OPERATIONS
        for fault in FAULTS
        for form in operation.forms
        if has_meaning(fault, operation)
        and _is_wanted(operation.name, operations)
        and _is_wanted(fault.name, faults)
        and _is_wanted(operation.door, doors)
        and _is_wanted(form, forms)
    ]


def _is_wanted(name: str, names: Sequence[str]) -> bool:
    return not names or name in names


def run_cells(
    cells: Sequence[Cell],
    watch: Callable[[CellResult, int], None],
    prompt_s: float | None = None,
    run_cell: Callable[[Cell], Run] = run_cell,
) -> list[CellResult]:
    """Run cells one after the other: the clock counts. `watch` gets each result, and how many are done."""
    outcomes = []
    for number, cell in enumerate(cells, 1):
        start = time.monotonic()
        run = run_cell(cell)
        outcomes.append(CellResult(cell, run, tuple(find_flaws(cell, run, prompt_s)), time.monotonic() - start))
        watch(outcomes[-1], number)
    return outcomes


def write_table(outcomes: Iterable[CellResult]) -> str:
    """Write operations as rows and faults as columns, with a mark for the small form and one for the large."""
    marks: dict[tuple[str, str], dict[str, str]] = {}
    for outcome in outcomes:
        cell = outcome.cell
        row = marks.setdefault((cell.operation.door, cell.operation.name), {})
        row[cell.fault.name] = row.get(cell.fault.name, "") + outcome.mark
    columns = [fault.name for fault in FAULTS if any(fault.name in row for row in marks.values())]
    heads = [name.split() for name in columns]
    height = max(map(len, heads), default=0)
    lines = [["", *(head[at] if at < len(head) else "" for head in heads)] for at in range(height)]
    for (door, name), row in marks.items():
        title = name if door == "phalanx" else f"{door} {name}"
        lines.append([title, *(row.get(column, NO_MEANING) for column in columns)])
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in lines)


def write_legend() -> str:
    """Explain the marks."""
    return (
        f"{NAMED} every survivor names the culprit   {NOT_NAMED} not so   {NO_MEANING} no meaning   "
        f"{HARMLESS} harmless: nobody is held up, and no rank raises\nfirst mark: 16 floats; second: 1 Mi floats"
    )


def summarise(outcomes: Sequence[CellResult]) -> str:
    """Say how many culprits were named."""
    counted = [outcome for outcome in outcomes if outcome.is_counted]
    return f"fault matrix: {sum(not outcome.flaws for outcome in counted)} of {len(counted)} named"
