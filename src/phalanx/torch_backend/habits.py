"""How a group goes about operations on devices: what it refuses, what it keeps, what the program has been told."""

from __future__ import annotations

import sys
from collections import deque
from dataclasses import dataclass, field
from typing import Protocol

from phalanx.torch_backend.profiling import CommsRecorder
from phalanx.torch_backend.rules import Rules

_MANY, _FEW = 512, 8
_REFERENCES_OF_OURS = 3  # the entry, the variable, and the argument of getrefcount()


class HoldsTensors(Protocol):
    """A work, with the tensors it fills."""

    def let_go(self) -> None:
        """Forget the tensors."""


class RecentWorks:
    """Keeps works alive that only C++ holds: it would find their Python half gone, and wait for ever.

    They hold memory of a device: one that has been waited for is not kept, and one that is over keeps no tensors. Only
    C++ may ask for the result of a work it has waited for, and does so soon: DDP's reducer with uneven inputs.
    """

    def __init__(self) -> None:
        self._works: dict[object, HoldsTensors] = {}  # by outcome, the oldest first
        self._waited_for: deque[HoldsTensors] = deque(maxlen=_FEW)

    def add(self, outcome: object, work: HoldsTensors) -> None:
        """Keep a work that has started."""
        self._works[outcome] = work
        if len(self._works) > _MANY:
            self._works.pop(next(iter(self._works)), None)

    def is_waited_for(self, outcome: object, *, by_python: bool) -> None:
        """Keep it no longer, or a little while."""
        work = self._works.pop(outcome, None)
        if work is not None and not by_python:
            self._waited_for.append(work)

    def is_over(self, outcome: object) -> None:
        """Keep it without its tensors, unless the program holds it too and may ask for them."""
        work = self._works.get(outcome)
        if work is not None and sys.getrefcount(work) <= _REFERENCES_OF_OURS:
            work.let_go()

    def all_are_over(self) -> None:
        """Do that with all: the group has ended."""
        self._waited_for.clear()
        for outcome in list(self._works):
            self.is_over(outcome)


@dataclass
class Telling:
    """Whether the program knows that operations of a group have failed.

    One failure tends to bring others: who has been told of one knows about all that were under way then.
    """

    num_started: int = 0
    num_told: int = 0

    def started(self) -> int:
        """Return the number of an operation that starts."""
        self.num_started += 1
        return self.num_started

    def told(self) -> None:
        """Note that the program has got an exception."""
        self.num_told = self.num_started


@dataclass
class Habits:
    """What the operations of a group have in common.

    Attributes:
        rules: What it refuses.
        comms: Who describes its operations to the profiler.
        recent: Works that are kept alive.
        telling: What the program has been told of failures.
    """

    rules: Rules | None = None
    comms: CommsRecorder | None = None
    recent: RecentWorks = field(default_factory=RecentWorks)
    telling: Telling = field(default_factory=Telling)
