"""What each rank does in a cell of the matrix.

The file is copied out of the package before ranks run it: errors show the lines of the user, never phalanx's own.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

from phalanx.conformance.faults.cell import Cell
from phalanx.conformance.faults.doors import Door
from phalanx.conformance.faults.faults import REASON, altered
from phalanx.conformance.faults.notes import have_survivors_noted, note_error, note_fault
from phalanx.conformance.faults.operations import CULPRIT, Arguments
from phalanx.errors import PhalanxError


def play(cell: Cell, door: Door, folder: Path) -> None:
    """Make one good call, then the one that goes wrong, then one that all ranks must come to.

    A rank that gets an error writes it down and raises it, as any program would: the launcher tells the others.
    """
    right = cell.arguments()
    cell.operation.call(door, right)
    meet(cell, door)
    door.set_timeout(cell.timeout)
    try:
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
    while not have_survivors_noted(folder):
        time.sleep(0.01)


def meet(cell: Cell, door: Door) -> None:
    """Wait for all ranks, in an operation that can't be taken for the cell's own."""
    if cell.operation.name == "barrier":
        door.api.all_reduce(Arguments(5).one())
    else:
        door.api.barrier()
