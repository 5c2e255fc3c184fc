"""A rank's report on its part of a test."""

from __future__ import annotations

import traceback
import warnings
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

from phalanx.diagnosis import formatting
from phalanx.diagnosis.retold_errors import see_through
from phalanx.diagnosis.stacks import is_users
from phalanx.diagnosis.tracebacks import format_error
from phalanx.errors import PeerLeftError, PhalanxError
from phalanx.launch.context import current_context
from phalanx.launch.disagreement import Disagreement, read_disagreement
from phalanx.launch.exceptions import find_consequence, find_mismatch, headline_of
from phalanx.launch.sending import pack_exception
from phalanx.settings import full_trace

# "rejected" means that Hypothesis has to try another example.
Outcome = Literal["passed", "failed", "skipped", "xfailed", "rejected"]


@dataclass(frozen=True)
class Waiting:
    """The operation that a rank waits in, or waited in when the failure of another rank ended it.

    Attributes:
        operation: Its name.
        number: Its number; 0 if it has none, or if the group was broken before the call.
        location: File and line of the call, or of the exception.
        group: Its group; empty for the world.
    """

    operation: str
    number: int = 0
    location: str = ""
    group: str = ""

    def __str__(self) -> str:
        number = f" #{self.number}" if self.number else ""
        where = f", {formatting.place(self.location)}" if self.location else ""
        group = f' of group "{self.group}"' if self.group else ""
        return f"waiting in {self.operation}{number}{where}{group}"


@dataclass
class CaughtWarning:
    """A warning of a rank, for pytest's summary."""

    text: str
    category: type[Warning]
    filename: str
    line: int


def caught_warnings(found: Iterable[warnings.WarningMessage] | None) -> list[CaughtWarning]:
    """Describe recorded warnings, each once."""
    described = [CaughtWarning(str(one.message), one.category, one.filename, one.lineno) for one in found or ()]
    return [one for place, one in enumerate(described) if one not in described[:place]]


@dataclass
class RankReport:
    """How the test ended on one rank, and its output.

    Attributes:
        outcome: The outcome in pytest's words.
        result: The pickled result of the function; None for tests.
        exception: The pickled exception; empty if it can't be pickled.
        headline: The exception's first line, or why it was skipped.
        kind: Name of the exception's class.
        place: File and line where it was raised.
        shown: How pytest shows the failure; a text if pytest does not run.
        is_consequence: Whether the rank failed only because another rank had failed.
        waited_in: The operation that the failure of another rank ended, or in which ranks disagree; None if this rank
            failed by itself.
        disagreement: What the rank knows of a mismatch because of which it failed.
        left_by: The ranks whose leaving made this one fail, if it did.
        last_call: What they called last.
        log: The formatted log.
        warnings: The warnings.
        subtests: Results of its subtests.
        left_behind: Threads and processes that it did not end.
        properties: The values of record_property().
        coverage: What coverage.py measured.
        wants_exit: Whether the user has left the debugger with "quit", which ends the whole session.
    """

    outcome: Outcome
    result: bytes | None = None
    exception: bytes = b""
    headline: str = ""
    kind: str = ""
    place: str = ""
    shown: Any = None
    is_consequence: bool = False
    waited_in: Waiting | None = None
    disagreement: Disagreement | None = None
    left_by: tuple[int, ...] = ()
    last_call: str = ""
    log: str = ""
    warnings: list[CaughtWarning] = field(default_factory=list)
    subtests: list[Any] = field(default_factory=list)
    left_behind: list[str] = field(default_factory=list)
    properties: list[tuple[str, object]] = field(default_factory=list)
    coverage: bytes = b""
    wants_exit: bool = False


def report_failure(error: BaseException, shown: Any = None) -> RankReport:
    """Describe an exception."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if is_users(frame.filename)] or frames
    place = f"{own[-1].filename}:{own[-1].lineno}" if own else ""
    cause, mismatch = find_consequence(error), find_mismatch(error)
    left = cause if isinstance(cause, PeerLeftError) else None
    context = current_context()
    # In a part of the world, ranks have other numbers.
    is_of_world = left is not None and context is not None and left.num_ranks == context.size
    return RankReport(
        outcome="failed",
        exception=pack_exception(see_through(error)),
        headline=headline_of(error),
        kind=type(see_through(error)).__name__,
        place=place,
        shown=shown if shown is not None else format_error(error, is_full=full_trace()),
        is_consequence=cause is not None,
        waited_in=_interrupted_operation(cause or mismatch, place),
        disagreement=read_disagreement(mismatch),
        left_by=left.culprits if left is not None and is_of_world else (),
        last_call=left.last_call if left is not None else "",
    )


def _interrupted_operation(cause: BaseException | None, place: str) -> Waiting | None:
    if cause is None:
        return None
    if not isinstance(cause, PhalanxError):
        return Waiting("an operation of Gloo's", location=place)
    return Waiting(cause.operation or "an operation", cause.sequence or 0, place)
