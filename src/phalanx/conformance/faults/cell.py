"""One cell of the matrix: an operation in one of its forms, and a fault."""

from __future__ import annotations

import contextlib
import importlib.util
import shutil
import tempfile
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

from phalanx.conformance.faults.doors import enter
from phalanx.conformance.faults.faults import Fault, find_fault, is_harmless, is_prompt
from phalanx.conformance.faults.notes import Note, read_fault, read_notes
from phalanx.conformance.faults.operations import FORMS, NUM_RANKS, Arguments, Operation, find_operation
from phalanx.launch.spawn import spawn

_SHORT_S = 0.5  # of operations that must time out
_LONG_S = 30.0  # of those whose error must come without
_CELL_LIMIT_S = 20.0


@dataclass(frozen=True)
class Cell:
    """What is tried."""

    operation: Operation
    form: str
    fault: Fault

    def __str__(self) -> str:
        return f"{self.operation.door} {self.operation.name}, {self.form}, {self.fault.name}"

    def arguments(self) -> Arguments:
        """Return what every rank shall pass."""
        return Arguments(FORMS[self.form])

    @property
    def is_prompt(self) -> bool:
        """Whether errors must come without a timeout."""
        return is_prompt(self.fault, self.operation)

    @property
    def is_harmless(self) -> bool:
        """Whether no rank shall raise."""
        return is_harmless(self.fault, self.operation, self.form)

    @property
    def timeout(self) -> timedelta:
        """How long its operations may take."""
        return timedelta(seconds=_LONG_S if self.is_prompt else _SHORT_S)


@dataclass(frozen=True)
class Run:
    """What happened.

    Attributes:
        notes: How ranks ended; those that died or hang have no note.
        fault_at: When the fault struck.
    """

    notes: dict[int, Note]
    fault_at: float | None


def run_cell(cell: Cell) -> Run:
    """Run a cell on ranks of its own."""
    with tempfile.TemporaryDirectory(prefix="phalanx-faults-") as name:
        folder = Path(name)
        shutil.copy(Path(__file__).with_name("program.py"), folder)
        key = (cell.operation.door, cell.operation.name, cell.form, cell.fault.name)
        with contextlib.suppress(Exception):  # some rank's; what it was, the notes tell
            spawn(_be_rank, ranks=NUM_RANKS, args=(key, folder), timeout_s=_CELL_LIMIT_S)
        return Run(read_notes(folder), read_fault(folder))


def _be_rank(key: tuple[str, str, str, str], folder: Path) -> None:
    door, operation, form, fault = key
    cell = Cell(find_operation(door, operation), form, find_fault(fault))
    _load_program(folder).play(cell, enter(door, folder), folder)


def _load_program(folder: Path) -> Any:
    spec = importlib.util.spec_from_file_location("program", folder / "program.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
