"""How the ranks of spawn() ended: their results, or the failure that caused the others."""

from __future__ import annotations

import errno
import os
import pickle
import resource
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from phalanx.diagnosis import formatting
from phalanx.diagnosis.tracebacks import with_sources
from phalanx.engine import ControlGroups
from phalanx.errors import InternalError, OperationTimeoutError, PhalanxError, RankFailedError
from phalanx.launch.connection import Connection
from phalanx.launch.rank import UNKNOWN_STATUS, Rank, first_culprit
from phalanx.launch.rank_process import Report
from phalanx.scarcity import advice_about

_SHOWN_FAILURES = 8
_RAISED = "raised on rank "  # begins the note of an exception that a rank has raised


class RankTraceback(Exception):
    """The traceback of the rank that failed, shown as the cause of what spawn() raises."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text

    def __str__(self) -> str:
        return "\n" + self.text


@dataclass(eq=False)
class SpawnedRank(Rank):
    """A rank of spawn().

    Attributes:
        connection: The connection that its report comes through.
        report: Its report about its function; None if it died without one.
    """

    connection: Connection | None = None
    report: Report | None = None

    def exception(self) -> BaseException | None:
        """Return the exception that the rank raised, if it can be rebuilt."""
        if self.report is None or not self.report.exception:
            return None
        error: BaseException = pickle.loads(self.report.exception)
        return error

    def headline(self) -> str:
        """Say in a line how it failed."""
        if self.report is not None:
            return self.report.description.splitlines()[0]
        status = self.status if self.status is not None else UNKNOWN_STATUS
        if status == UNKNOWN_STATUS:
            return "lost by the process that ranks are forked from; see its output above"
        if status >= 256:
            return f"killed by {_signal_name(status - 256)}"
        return f"ended with exit code {status} and no result"


def _signal_name(number: int) -> str:
    try:
        return f"{signal.Signals(number).name} (signal {number})"
    except ValueError:
        return f"signal {number}"


def raise_first(ranks: Sequence[SpawnedRank]) -> None:
    """Raise an error for the first failure that another rank did not cause.

    Raises:
        RankFailedError: The rank died, or its exception can't be pickled.
        Exception: What the rank raised.
    """
    first = first_culprit(ranks)
    assert first is not None
    others = sorted((rank for rank in ranks if rank.is_culprit and rank is not first), key=lambda r: r.failed_at or 0.0)
    lines = [f"{_RAISED}{first.number} of {len(ranks)}"] if first.report is not None else []
    lines += [*_describe_others(first, others), *_advise(first)]
    error = first.exception() or rank_failed(first, len(ranks))
    if isinstance(error, SystemExit):  # raised here, it would end the caller, and nobody would know why
        error = _left_by_sys_exit(first, error.code, len(ranks))
    if lines:
        error.add_note("\n".join(lines))
    if first.report is None:
        raise error
    text = first.report.traceback
    raise error from (RankTraceback(f"rank {first.number} of {len(ranks)}:\n{with_sources(text)}") if text else None)


def _left_by_sys_exit(rank: SpawnedRank, code: object, num_ranks: int) -> RankFailedError:
    error = RankFailedError(
        f"rank {rank.number} of {num_ranks} called sys.exit({code!r})",
        rank=rank.number,
        num_ranks=num_ranks,
        culprits=(rank.number,),
    )
    error.exit_code = code if isinstance(code, int) else 1
    return error


def _describe_others(first: SpawnedRank, others: Sequence[SpawnedRank]) -> list[str]:
    """Say how other ranks failed by themselves, those with the same failure in one line."""
    same = [rank.number for rank in others if rank.headline() == first.headline()]
    lines = [f"{formatting.rank_list(same)} failed in the same way"] if same else []
    different = [rank for rank in others if rank.number not in same]
    return lines + [f"rank {rank.number} failed too: {rank.headline()}" for rank in different[:_SHOWN_FAILURES]]


def _advise(first: SpawnedRank) -> list[str]:
    if first.report is not None or first.status is None or first.status < 0:
        return []
    return [f"  do       {formatting.advice_about_death(first.status)}"]


def is_for_user(error: BaseException) -> bool:
    """Tell whether it does not matter where in phalanx an exception was raised, because it is not about phalanx."""
    if isinstance(error, KeyboardInterrupt) or any(n.startswith(_RAISED) for n in getattr(error, "__notes__", ())):
        return True
    return isinstance(error, PhalanxError) and not isinstance(error, InternalError)


def rank_failed(rank: SpawnedRank, num_ranks: int) -> RankFailedError:
    """Make the error for a rank whose exception can't be raised here, or that has raised none."""
    status = rank.status if rank.status is not None else UNKNOWN_STATUS
    has_code = 0 <= status < 256
    verb = "was " if rank.report is None and not has_code else ""
    verb = "raised " if rank.report is not None else verb
    error = RankFailedError(
        f"rank {rank.number} of {num_ranks} {verb}{rank.headline()}",
        rank=rank.number,
        num_ranks=num_ranks,
        culprits=(rank.number,),
    )
    error.exit_code = status if has_code else None
    error.signal = status - 256 if status >= 256 else None
    return error


def could_not_start(rank: int, num_ranks: int, number: int, limit: str) -> RankFailedError:
    """Make the error for a rank whose process the kernel refused to make.

    Args:
        rank: The rank; those before it were ended again.
        num_ranks: The number of ranks that were asked for.
        number: The errno of fork.
        limit: The result of describe_process_limit() in the process that called fork.
    """
    advice = advice_about(OSError(number, os.strerror(number)))
    why = f"{os.strerror(number)} ({errno.errorcode.get(number, number)})"
    headline = f"rank {rank} of {num_ranks} could not be started: {why}"
    lines = [headline, *([f"  limit    {limit}"] if limit else []), *([f"  do       {advice}"] if advice else [])]
    return RankFailedError("\n".join(lines), num_ranks=num_ranks, culprits=(rank,), verdict="not started")


def describe_process_limit(error: OSError) -> str:
    """Say which limit has probably kept this process from forking; empty if it was none."""
    if error.errno != errno.EAGAIN:
        return ""
    if ControlGroups().processes_left() == 0:
        return "the control group of this process may have no more processes and threads (pids.max)"
    soft, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    allowed = "any number of" if soft == resource.RLIM_INFINITY else str(soft)
    return f"user {os.getuid()} may have {allowed} processes and threads (ulimit -u)"


def too_slow(missing: list[int], num_ranks: int, timeout_s: float, places: Mapping[int, str]) -> OperationTimeoutError:
    """Make the error for ranks that were not done in time; `places` says where they are, by rank."""
    return OperationTimeoutError(
        f"spawn: timed out after {timeout_s:.3g} s; {describe_unfinished(missing, num_ranks, places)}",
        num_ranks=num_ranks,
        culprits=tuple(missing),
    )


def describe_unfinished(missing: Sequence[int], num_ranks: int, places: Mapping[int, str]) -> str:
    """Say which ranks are not done, and where they are in the program."""
    ranks: dict[str, list[int]] = {}
    for rank, place in places.items():
        ranks.setdefault(place, []).append(rank)
    lines = [f"\n  {formatting.rank_list(some)} at {place}" for place, some in ranks.items() if place]
    return f"of {num_ranks} ranks these were not done: {', '.join(map(str, missing))}{''.join(lines)}"


def describe_place(own: str, children: Mapping[str, Sequence[int]]) -> str:
    """Say which line of the program a rank is at, and the processes that it has started; empty if none answered."""
    started = [
        f"; pid{'s' * (len(pids) > 1)} {', '.join(map(str, pids))}, which it started, at {place}"
        for place, pids in children.items()
    ]
    return (own or "a line that it did not tell" * bool(started)) + "".join(started)


def unpack(report: Report) -> Any:
    """Return the result that a rank reported."""
    return pickle.loads(report.result or b"")
