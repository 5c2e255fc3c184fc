"""Run a cell of the matrix: what each rank does in it."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import tempfile
import time
from pathlib import Path
from unittest.mock import patch

from phalanx.errors import PhalanxError
from phalanx.launch.spawn import spawn
from phalanx_tools.conformance.faults.cell import Cell, Run
from phalanx_tools.conformance.faults.doors import Door, enter
from phalanx_tools.conformance.faults.faults import REASON, altered, find_fault
from phalanx_tools.conformance.faults.notes import NOTES_OF_SURVIVORS, note_error, note_fault, read_fault, read_notes
from phalanx_tools.conformance.faults.operations import CULPRIT, NUM_RANKS, Arguments, find_operation

_CELL_LIMIT_S = 20.0


def run_cell(cell: Cell) -> Run:
    """Run a cell on ranks of its own."""
    with tempfile.TemporaryDirectory(prefix="phalanx-faults-") as name:
        folder = Path(name)
        key = (cell.operation.door, cell.operation.name, cell.form, cell.fault.name)
        # On a busy machine a survivor may need longer than usual until it has written its note.
        with (
            patch.dict(os.environ, PHALANX_GRACE_S=str(_CELL_LIMIT_S / 2)),
            contextlib.suppress(Exception),  # some rank's; what it was, the notes tell
        ):
            spawn(_be_rank, ranks=NUM_RANKS, args=(key, folder), timeout_s=_CELL_LIMIT_S)
        return Run(read_notes(folder), read_fault(folder))


def _be_rank(key: tuple[str, str, str, str], folder: Path) -> None:
    door, operation, form, fault = key
    play(Cell(find_operation(door, operation), form, find_fault(fault)), enter(door, folder), folder)


def play(cell: Cell, door: Door, folder: Path) -> None:
    """Make one good call, then the one that goes wrong, then one that all ranks must come to.

    A rank that gets an error writes it down and raises it, as any program would: the launcher tells the others.
    """
    right = cell.arguments()
    cell.operation.call(door, right)
    try:
        meet(cell, door)  # the culprit may have done its part of this and go wrong before another rank has
        door.set_timeout(cell.timeout)
        if door.rank == CULPRIT:
            go_wrong(cell, door, right, folder)
        else:
            cell.operation.call(door, right)
            if cell.fault.name == "other order":
                meet(cell, door)
        meet(cell, door)
    except PhalanxError as error:
        note_error(folder, door.rank, error)
        raise
    note_error(folder, door.rank, None)


def go_wrong(cell: Cell, door: Door, right: Arguments, folder: Path) -> None:
    """Be the culprit."""
    note_fault(folder)
    match cell.fault.name:
        case "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        case "raised":
            raise ValueError(REASON)
        case "exited":
            sys.exit(0)
        case "exited hard":
            os._exit(3)
        case "stalled":
            stall(folder)
        case "skipped call":
            pass
        case "extra call":
            cell.operation.call(door, right)
            cell.operation.call(door, right)
        case "other order":
            meet(cell, door)
            cell.operation.call(door, right)
        case _:
            cell.operation.call(door, altered(cell.fault, right))


def stall(folder: Path) -> None:
    """Do something else until all others have given up."""
    name = str(folder)
    while not NOTES_OF_SURVIVORS.issubset(os.listdir(name)):  # no call of Python code: the others shall see us here
        time.sleep(0.01)


def meet(cell: Cell, door: Door) -> None:
    """Wait for all ranks, in an operation that can't be taken for the cell's own."""
    if cell.operation.name == "barrier":
        door.api.all_reduce(Arguments(5).one())
    else:
        door.api.barrier()
