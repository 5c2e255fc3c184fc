"""What became of the ranks: their results, or which failure to blame for the rest."""

from __future__ import annotations

import errno
import os
import pickle
import resource
import signal
import time
from dataclasses import dataclass, field
from typing import Any

from phalanx.engine import ControlGroups
from phalanx.errors import AbortedError, OperationTimeoutError, PeerError, RankFailedError
from phalanx.launch.rank_process import Report
from phalanx.scarcity import advice_about

LOST_STATUS = -1  # nobody knows how it ended


class RankTraceback(Exception):
    """The traceback of the rank that failed, shown as the cause of what spawn() raises."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return "\n" + self.text


@dataclass
class Failure:
    """One rank's end without a result."""

    rank: int
    report: Report | None  # None when it died without one
    status: int  # exit code, or 256 + signal
    when: float = field(default_factory=time.monotonic)

    def exception(self) -> BaseException | None:
        """Return what the rank raised, if it can be rebuilt."""
        if self.report is None or not self.report.exception:
            return None
        error: BaseException = pickle.loads(self.report.exception)
        return error

    def is_consequence(self) -> bool:
        """Tell whether it only failed because another rank had."""
        return isinstance(self.exception(), (PeerError, AbortedError))

    def headline(self) -> str:
        """Say in a line what happened."""
        if self.report is not None:
            return self.report.description.splitlines()[0]
        if self.status == LOST_STATUS:
            return "lost by the process that ranks are forked from; see its output above"
        if self.status >= 256:
            return f"killed by {_signal_name(self.status - 256)}"
        return f"ended with exit code {self.status} and no result"


def _signal_name(number: int) -> str:
    try:
        return f"{signal.Signals(number).name} (signal {number})"
    except ValueError:
        return f"signal {number}"


def raise_first(failures: list[Failure], num_ranks: int) -> None:
    """Raise for the failure that came first and was not caused by another.

    Raises:
        RankFailedError: The rank died, or its exception can't travel.
        Exception: What the rank raised.
    """
    ordered = sorted(failures, key=lambda failure: (failure.is_consequence(), failure.when))
    first = ordered[0]
    others = [failure for failure in ordered[1:] if not failure.is_consequence()]
    note = f"raised on rank {first.rank} of {num_ranks}"
    if others:
        note += "".join(f"\nrank {other.rank} failed too: {other.headline()}" for other in others[:8])
    error = first.exception() or rank_failed(first, num_ranks)
    error.add_note(note)
    if first.report is None:
        raise error
    raise error from RankTraceback(f"rank {first.rank} of {num_ranks}:\n{first.report.traceback}")


def rank_failed(failure: Failure, num_ranks: int) -> RankFailedError:
    """Make the error for a rank whose own exception can't be raised, or that has none."""
    has_code = 0 <= failure.status < 256
    verb = "was " if failure.report is None and not has_code else ""
    verb = "raised " if failure.report is not None else verb
    error = RankFailedError(
        f"rank {failure.rank} of {num_ranks} {verb}{failure.headline()}",
        rank=failure.rank,
        num_ranks=num_ranks,
        culprits=(failure.rank,),
    )
    error.exit_code = failure.status if has_code else None
    error.signal = failure.status - 256 if failure.status >= 256 else None
    return error


def could_not_start(rank: int, num_ranks: int, number: int, limit: str) -> RankFailedError:
    """Make the error for a rank whose process the kernel refused.

    Args:
        rank: Which one; those before it were ended again.
        num_ranks: How many there should be.
        number: The errno of fork.
        limit: What describe_process_limit() said where it was refused.
    """
    advice = advice_about(OSError(number, os.strerror(number)))
    why = f"{os.strerror(number)} ({errno.errorcode.get(number, number)})"
    told = f"rank {rank} of {num_ranks} could not be started: {why}"
    lines = [told, *([f"  limit    {limit}"] if limit else []), *([f"  do       {advice}"] if advice else [])]
    return RankFailedError("\n".join(lines), num_ranks=num_ranks, culprits=(rank,), verdict="not started")


def describe_process_limit(error: OSError) -> str:
    """Say which limit has most probably kept this process from forking; nothing when it was none."""
    if error.errno != errno.EAGAIN:
        return ""
    if ControlGroups().processes_left() == 0:
        return "the control group of this process may have no more processes and threads (pids.max)"
    soft, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    allowed = "any number of" if soft == resource.RLIM_INFINITY else str(soft)
    return f"user {os.getuid()} may have {allowed} processes and threads (ulimit -u)"


def too_slow(missing: list[int], num_ranks: int, timeout_s: float) -> OperationTimeoutError:
    """Make the error for ranks that were not done in time."""
    names = ", ".join(map(str, missing))
    return OperationTimeoutError(
        f"spawn: timed out after {timeout_s:.3g} s; of {num_ranks} ranks these were not done: {names}",
        num_ranks=num_ranks,
        culprits=tuple(missing),
    )


def unpack(report: Report) -> Any:
    """Return the result a rank reported."""
    return pickle.loads(report.result or b"")
