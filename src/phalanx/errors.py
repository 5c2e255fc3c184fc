"""The exceptions that phalanx raises.

PhalanxError
├── UsageError              your call is wrong, and nothing was sent                 (also a ValueError)
│   └── ClosedError         the group was closed before this call
├── MismatchError           ranks made different calls
├── OperationTimeoutError   a rank did not come in time                              (also a TimeoutError)
├── PeerError               another rank can't go on
│   ├── PeerDiedError       its process ended
│   ├── PeerFailedError     it raised an exception, or its arguments were refused
│   └── PeerLeftError       it ended, or closed the group
├── AbortedError            a rank called abort()
├── SharedMemoryError       there is not enough memory                               (also a MemoryError)
├── RankFailedError         a rank of spawn() failed, and spawn() can't raise the rank's own exception
├── BuildError              the native part of virtual devices could not be built or loaded
├── RaceError               two streams of virtual devices used the same memory, and neither waited for the other
└── InternalError           a bug in phalanx
"""

from __future__ import annotations

from typing import Any, TypeAlias

Details: TypeAlias = tuple[tuple[str, str], ...]


class PhalanxError(RuntimeError):
    """The base class of all errors of phalanx. The first line of the text is enough for a log.

    Attributes:
        group: The name of the group, or "".
        rank: The rank that raises the error, or None outside a group.
        num_ranks: The size of the group, or None outside a group.
        operation: The name of the operation, such as "all_reduce", or "".
        sequence: The running number of the operation in its group, or None.
        culprits: The ranks that caused the error, as far as they are known.
        verdict: What the culprits did, in a word or two, such as "late", "left" or "different shape"; "" if unknown.
        details: The lines of the text below the first one, as pairs of a label and a text. The label is "" if a line
            continues the one above.
    """

    def __init__(
        self,
        message: str,
        *,
        group: str = "",
        rank: int | None = None,
        num_ranks: int | None = None,
        operation: str = "",
        sequence: int | None = None,
        culprits: tuple[int, ...] = (),
        verdict: str = "",
    ) -> None:
        super().__init__(message)
        self.group = group
        self.rank = rank
        self.num_ranks = num_ranks
        self.operation = operation
        self.sequence = sequence
        self.culprits = culprits
        self.verdict = verdict
        self.details: Details = ()

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), str(self), self.__dict__)


def _rebuild(kind: type[PhalanxError], message: str, attributes: dict[str, Any]) -> PhalanxError:
    error = kind(message)
    error.__dict__.update(attributes)
    return error


class UsageError(PhalanxError, ValueError):
    """Your call is wrong. Nothing was sent, and peers in the same operation get a PeerFailedError."""


class ClosedError(UsageError):
    """The group is closed, or it belongs to the process that this one was forked from."""


class MismatchError(PhalanxError):
    """Ranks called different operations, or the same operation with different shapes, dtypes or roots.

    If more than half of all ranks of the group made the same call, `culprits` are the others. Otherwise it is not known
    who is right, and there are no culprits.

    Attributes:
        sides: The ranks that made the same call, for each call, such as ((0, 1, 3), (2,)). Ranks that came later, or
            not at all, are missing.
    """

    sides: tuple[tuple[int, ...], ...] = ()


class OperationTimeoutError(PhalanxError, TimeoutError):
    """An operation did not finish before its deadline. `culprits` are the ranks that did not come."""


class DeadlockError(OperationTimeoutError):
    """Ranks wait for each other, so that none can ever go on. `culprits` are the ranks that this one waits for.

    You get it as soon as that is proved: after a second or two, or 30 seconds if libraries run threads in a process.
    """


class PeerError(PhalanxError):
    """Another rank can't go on, so this one can't either."""


class PeerDiedError(PeerError):
    """The process of a peer ended without closing the group.

    Attributes:
        pid: The id of that process, or 0.
        last_call: What it did last in this group, such as "left barrier #1, train.py:8, begun 2 s ago"; "" if nothing.
        exit_code: Its exit code, or None if a signal ended it or the exit code is not known.
        signal: The number of the signal that ended it, or None.
    """

    pid: int = 0
    last_call: str = ""
    exit_code: int | None = None
    signal: int | None = None


class PeerFailedError(PeerError):
    """A peer raised an exception, or phalanx refused its arguments to the same operation."""


class PeerLeftError(PeerError):
    """A peer reached the end of its program, or closed the group, while this rank still needed it.

    Attributes:
        pid: The id of the peer's process, or 0.
        last_call: What it called last in this group, such as "barrier #1, train.py:8"; "" if nothing.
    """

    pid: int = 0
    last_call: str = ""


class AbortedError(PhalanxError):
    """This rank or a peer aborted the group."""


class SharedMemoryError(PhalanxError, MemoryError):
    """There is not enough memory.

    Attributes:
        needed_bytes: How much memory phalanx needs.
        available_bytes: How much the machine and the limits of the control group leave.
    """

    needed_bytes: int = 0
    available_bytes: int = 0


class RankFailedError(PhalanxError):
    """A rank of spawn() ended without a result.

    Attributes:
        exit_code: Its exit code, or None.
        signal: The number of the signal that ended it, or None.
    """

    exit_code: int | None = None
    signal: int | None = None


class BuildError(PhalanxError):
    """The native part of virtual devices could not be built on this machine, or can't be loaded.

    Attributes:
        log: The file with the output of the compiler, or "".
    """

    log: str = ""


class RaceError(PhalanxError):
    """Two streams of virtual devices used the same memory, and neither waited for the other.

    Attributes:
        device: The index of the device that has the memory, or None.
        first_operation: The earlier operation, such as "aten::add_".
        first_line: Where it was called, such as "train.py:61", or "".
        first_stream: The number of its stream; 0 is the default stream.
        second_operation: The later operation, which did not wait for the earlier one.
        second_line: Where it was called.
        second_stream: The number of its stream.
    """

    device: int | None = None
    first_operation: str = ""
    first_line: str = ""
    first_stream: int = 0
    second_operation: str = ""
    second_line: str = ""
    second_stream: int = 0


class InternalError(PhalanxError):
    """A bug in phalanx. Please report it, with the text of the error."""
