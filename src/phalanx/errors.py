"""Every exception phalanx raises.

PhalanxError
├── UsageError              the caller's mistake, noticed before anything was sent   (also a ValueError)
│   └── ClosedError         the group was closed before this call
├── MismatchError           ranks called different things
├── OperationTimeoutError   somebody did not come in time                            (also a TimeoutError)
├── PeerError               another rank can't go on
│   ├── PeerDiedError       its process ended
│   ├── PeerFailedError     it raised an exception, or its arguments were refused
│   └── PeerLeftError       it closed the group
├── AbortedError            somebody called abort()
├── SharedMemoryError       the machine has not enough memory                        (also a MemoryError)
├── RankFailedError         a rank started by spawn() failed and its own exception can't be shown as itself
├── BuildError              the native part of virtual devices could not be built or loaded
├── RaceError               two streams of virtual devices touched the same memory, and nothing orders them
└── InternalError           a bug in phalanx
"""

from __future__ import annotations

from typing import Any


class PhalanxError(RuntimeError):
    """Something phalanx could not do. The first line of the text alone is enough for a log.

    Attributes:
        group: Name of the group, or "".
        rank: The rank that raises, or None outside a group.
        num_ranks: Size of the group, or None outside one.
        operation: What was called, such as "all_reduce", or "".
        sequence: Running number of the operation in its group, or None.
        culprits: The ranks because of whom it failed, as far as they are known.
        verdict: What they did, in a word or two, such as "late", "left" or "different shape"; "" when nobody knows.
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

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), str(self), self.__dict__)


def _rebuild(kind: type[PhalanxError], message: str, attributes: dict[str, Any]) -> PhalanxError:
    error = kind(message)
    error.__dict__.update(attributes)
    return error


class UsageError(PhalanxError, ValueError):
    """The caller's mistake. Nothing was sent; peers in the same operation get a PeerFailedError."""


class ClosedError(UsageError):
    """The group was closed, or belongs to the process this one was forked from."""


class MismatchError(PhalanxError):
    """Ranks called different operations, or the same with different shapes, dtypes or roots."""


class OperationTimeoutError(PhalanxError, TimeoutError):
    """An operation was not finished by its deadline. `culprits` are the ranks that had not come."""


class PeerError(PhalanxError):
    """Another rank can't go on, so this one can't either."""


class PeerDiedError(PeerError):
    """The process of a peer ended without closing the group.

    Attributes:
        exit_code: Its exit code, or None when a signal ended it or nobody knows.
        signal: The number of the signal that ended it, or None.
    """

    exit_code: int | None = None
    signal: int | None = None


class PeerFailedError(PeerError):
    """A peer raised an exception, or its arguments to this very operation were refused."""


class PeerLeftError(PeerError):
    """A peer closed the group while others still used it."""


class AbortedError(PhalanxError):
    """The group was aborted, here or by a peer."""


class SharedMemoryError(PhalanxError, MemoryError):
    """The machine has not enough memory.

    Attributes:
        needed_bytes: What was asked for.
        available_bytes: What memory and control-group limits leave.
    """

    needed_bytes: int = 0
    available_bytes: int = 0


class RankFailedError(PhalanxError):
    """A rank started by spawn() ended without a result.

    Attributes:
        exit_code: Its exit code, or None.
        signal: The number of the signal that ended it, or None.
    """

    exit_code: int | None = None
    signal: int | None = None


class BuildError(PhalanxError):
    """The native part of virtual devices could not be built on this machine, or what was built can't be used.

    Attributes:
        log: File with all that the compiler said, or "".
    """

    log: str = ""


class RaceError(PhalanxError):
    """Two streams of virtual devices touched the same memory, and nothing orders the second behind the first.

    Attributes:
        device: Index of the device whose memory it is, or None.
        first_operation: What came first, such as "aten::add_".
        first_line: Where it was called, as "train.py:61", or "".
        first_stream: Number of its stream; 0 is the default stream.
        second_operation: What came without waiting for it.
        second_line: Where that was called.
        second_stream: Number of its stream.
    """

    device: int | None = None
    first_operation: str = ""
    first_line: str = ""
    first_stream: int = 0
    second_operation: str = ""
    second_line: str = ""
    second_stream: int = 0


class InternalError(PhalanxError):
    """A bug in phalanx: please report it with this text."""
