"""`./dev faults`: every operation with every fault, and whether all survivors name the culprit."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from phalanx_tools.conformance.faults.cell import Cell, Run
    from phalanx_tools.conformance.faults.matrix import CellResult


@click.command()
@click.option(
    "--operation", "operations", multiple=True, help='Run only this operation, such as "all_reduce"; may be repeated.'
)
@click.option("--fault", "faults", multiple=True, help='Run only this fault, such as "wrong shape"; may be repeated.')
@click.option("--door", "doors", multiple=True, type=click.Choice(["phalanx", "torch"]),
              help="Use only phalanx's own groups, or only torch.distributed.")  # fmt: skip
@click.option(
    "--form", "forms", multiple=True, type=click.Choice(["small", "large"]), help="Use only tensors of this size."
)
@click.option(
    "--hosts",
    "layout",
    type=click.Choice(["2+2", "1+2+1", "1+1+1+1"]),
    is_flag=False,
    flag_value="2+2",
    help="Run the four ranks on hosts that this machine makes (root), so many on each.",
)
@click.option(
    "--json", "json_file", type=click.Path(path_type=Path, dir_okay=False), help="Write all outcomes to this file."
)
@click.option(
    "--verbose", "-v", is_flag=True, help="Print every outcome, with the errors that do not name the culprit."
)
def faults(
    operations: tuple[str, ...],
    faults: tuple[str, ...],
    doors: tuple[str, ...],
    forms: tuple[str, ...],
    layout: str | None,
    json_file: Path | None,
    verbose: bool,
) -> None:
    """Run every operation with every fault on four ranks, and check that the error of every survivor names the culprit.

    The exit code is 1 if an error does not name the culprit.
    """
    from phalanx_tools.conformance.faults.matrix import list_cells, run_cells, summarise, write_legend, write_table
    from phalanx_tools.conformance.faults.program import run_cell as run_on_this_host

    cells = list_cells(operations=operations, faults=faults, doors=doors, forms=forms)
    if not cells:
        known = {f'"{name}"' for cell in list_cells() for name in (cell.operation.name, cell.fault.name)}
        raise click.ClickException(f"no cell has these names; there are {', '.join(sorted(known))}")
    is_watched = sys.stderr.isatty()

    def watch(outcome: CellResult, num_done: int) -> None:
        if is_watched:  # one line that is written over
            line = f"\r\x1b[K[{num_done}/{len(cells)}] {outcome.cell}" if num_done < len(cells) else "\r\x1b[K"
            click.echo(line, nl=False, err=True)
        if verbose or outcome.flaws:
            click.echo(f"[{num_done}/{len(cells)}] {outcome.cell}: {outcome.mark} in {outcome.seconds:.2f} s")
        for flaw in outcome.flaws:
            click.echo(f"    {flaw}")
        if verbose and outcome.flaws:
            _tell_notes(outcome)

    with contextlib.ExitStack() as stack:
        run_cell = run_on_this_host if layout is None else _start_hosts(stack, layout)
        outcomes = run_cells(cells, watch, run_cell=run_cell)
    click.echo(f"{write_table(outcomes)}\n\n{write_legend()}")
    if json_file is not None:
        json_file.write_text(json.dumps([_as_json(outcome) for outcome in outcomes], indent=1) + "\n")
    click.echo(summarise(outcomes))
    raise SystemExit(1 if any(outcome.flaws for outcome in outcomes) else 0)


def _start_hosts(stack: contextlib.ExitStack, layout: str) -> Callable[[Cell], Run]:
    from phalanx_tools.conformance.faults.over_hosts import JobsOverHosts
    from phalanx_tools.hosts.bed import hosts
    from phalanx_tools.hosts.requirements import why_no_hosts

    if why_no_hosts():
        raise click.ClickException(why_no_hosts())
    num_ranks = [int(number) for number in layout.split("+")]
    bed = stack.enter_context(hosts(len(num_ranks)))
    return stack.enter_context(JobsOverHosts(bed, num_ranks)).run_cell


def _tell_notes(outcome: CellResult) -> None:
    for rank, note in sorted(outcome.run.notes.items()):
        head = (
            f'rank {rank}: {note.kind} blames {note.culprits}, verdict "{note.verdict}"'
            if note.kind
            else f"rank {rank}"
        )
        click.echo("    " + f"{head}\n{note.text}".strip().replace("\n", "\n        "))


def _as_json(outcome: CellResult) -> dict[str, Any]:
    cell = outcome.cell
    return {
        "door": cell.operation.door,
        "operation": cell.operation.name,
        "form": cell.form,
        "fault": cell.fault.name,
        "mark": outcome.mark,
        "flaws": outcome.flaws,
        "seconds": round(outcome.seconds, 3),
        "fault_at": outcome.run.fault_at,
        "notes": {rank: asdict(note) for rank, note in outcome.run.notes.items()},
    }
