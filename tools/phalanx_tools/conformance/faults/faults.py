"""The faults of the matrix: what each means, and what survivors must say of it.

A fault is prompt when ranks can know of it as soon as it is there; what can only be told from somebody not coming is
known when the operation's timeout is over.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from phalanx.collectives import ReduceOp
from phalanx_tools.conformance.faults.operations import CULPRIT, Arguments, Operation

REASON = "the fault matrix wants it so"
# The rank, its process if that is on this host, and else the host.
_PROCESS = rf"rank {CULPRIT}(?: of \d+)? (?:\(pid \d+\)|on host \d+(?: \(\S+(?:, pid \d+)?\))?)"
_CALLED = rf"differs +{_PROCESS} called .*, \S*(?:operations|program)\.py:\d+"


@dataclass(frozen=True)
class Fault:
    """A column of the matrix.

    Attributes:
        name: What it is called in the table.
        verdicts: What the error's verdict may be, in a collective.
        words: A pattern that the error's text must contain, in a collective.
        needs: What an operation must have for the fault to mean something.
    """

    name: str
    verdicts: frozenset[str]
    words: str
    needs: str = ""

    @property
    def is_loss(self) -> bool:
        """Whether the culprit is gone afterwards."""
        return self in _LOSSES


def _fault(name: str, verdicts: str, words: str, needs: str = "") -> Fault:
    return Fault(name, frozenset(verdicts.split("|")), words, needs)


_LOSSES = (
    _fault("killed", "died", rf"{_PROCESS} was killed by SIGKILL"),
    _fault("raised", "raised", rf"{_PROCESS} (?:raised|failed): ValueError: {REASON}"),  # "failed" says the launcher
    _fault("exited", "left|ended", rf"{_PROCESS} (?:closed the group|has reached the end of its (?:program|function))"),
    _fault("exited hard", "died", rf"{_PROCESS} ended with exit code 3"),
)
_STALL = _fault("stalled", "late", rf"{_PROCESS} .*\n.*is now at \S*program\.py:\d+ in stall\b")
_DISAGREEMENTS = (
    _fault("wrong shape", "different shape|different size", _CALLED, "data"),
    _fault("wrong dtype", "different dtype", _CALLED, "data"),
    _fault("wrong op", "different reduce operation", _CALLED, "op"),
    _fault("wrong root", "different root", _CALLED, "root"),
)
_DISORDER = (
    _fault("skipped call", "different operation", _CALLED),
    _fault("extra call", "different operation", _CALLED),
    _fault("other order", "different operation", _CALLED),
)
FAULTS = (*_LOSSES, _STALL, *_DISAGREEMENTS, *_DISORDER)


def find_fault(name: str) -> Fault:
    """Return the column with this name."""
    return next(fault for fault in FAULTS if fault.name == name)


def has_meaning(fault: Fault, operation: Operation) -> bool:
    """Tell whether the operation can be got wrong in this way."""
    return not fault.needs or fault.needs in operation.needs


def is_prompt(fault: Fault, operation: Operation) -> bool:
    """Tell whether ranks can know of the fault before a timeout is over.

    Whether a message will still come, nobody can know.
    """
    return fault is not _STALL and not (operation.is_message and fault in _DISORDER)


def is_harmless(fault: Fault, operation: Operation, form: str) -> bool:
    """Tell whether nobody is held up, and no rank shall raise.

    A small message waits on the receiver's side. It may come early, and may stay there.
    """
    if not operation.is_message or form != "small":
        return False
    return fault.name in (("extra call",) if operation.culprit_sends else ("skipped call", "other order"))


def altered(fault: Fault, right: Arguments) -> Arguments:
    """Return what the culprit passes instead of the right arguments."""
    match fault.name:
        case "wrong shape":
            return replace(right, count=right.count + 4)
        case "wrong dtype":
            return replace(right, dtype=torch.int32)  # as many bytes as are right
        case "wrong op":
            return replace(right, op=ReduceOp.MAX)
        case "wrong root":
            return replace(right, root=CULPRIT)
    return right
