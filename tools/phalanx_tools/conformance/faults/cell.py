"""One cell of the matrix: an operation in one of its forms, and a fault."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from phalanx_tools.conformance.faults.faults import Fault, is_harmless, is_prompt
from phalanx_tools.conformance.faults.notes import Note
from phalanx_tools.conformance.faults.operations import FORMS, Arguments, Operation

_SHORT_S = 0.5  # of operations that must time out
_LONG_S = 30.0  # of those whose error must come without


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
