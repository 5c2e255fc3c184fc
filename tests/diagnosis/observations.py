"""Made-up groups, ranks and operations for tests from literals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from phalanx.diagnosis.observation import Observation
from phalanx.diagnosis.views import GroupView, JobView, ProcessView
from phalanx.engine.facts import EntryFacts, FaultFacts, FaultKind, RankFacts, RankRecords

NOW_NS = 100_000_000_000
NOTHING = RankRecords([], [])
_ENTRY = EntryFacts(
    seq=7,
    operation="all_reduce",
    dtype="float32",
    device="cpu",
    op="sum",
    root=0,
    peer=0,
    count=4,
    size_bytes=16,
    location="/home/me/train.py:61",
    is_async=False,
    start_ns=NOW_NS,
    end_ns=0,
    shape=(4,),
)
_ROW = RankFacts(
    rank=0,
    pid=800,
    launched_pid=0,
    thread=77,
    is_thread=False,
    is_here=True,
    is_debugged=False,
    state="present",
    exit_status=-1,
    arrived=6,
    finished=6,
    sleeps_for=-1,
    entry=None,
    begun=None,
    mail=None,
)


def entry(seq: int = 7, operation: str = "all_reduce", *, ago_s: float = 5.0, **changes: Any) -> EntryFacts:
    """An operation that began so long ago and has not ended."""
    began = {"seq": seq, "operation": operation, "start_ns": NOW_NS - int(ago_s * 1e9), "seconds_ago": ago_s}
    return _ENTRY._replace(**{**began, **changes})


def row(rank: int, *, pid: int | None = None, **changes: Any) -> RankFacts:
    """A rank that has left operation 6 and is in no other."""
    own = {"rank": rank, "pid": 800 + rank if pid is None else pid, "entry": entry(6, end_ns=NOW_NS)}
    return _ROW._replace(**{**own, **changes})


def waiting(rank: int, sleeps_for: int, *, pid: int | None = None, **changes: Any) -> RankFacts:
    """A rank that waits in operation 7."""
    return row(rank, pid=pid, arrived=7, sleeps_for=sleeps_for, entry=entry(**changes))


def receiving(rank: int, source: int, *, pid: int | None = None, tag: int = 0) -> RankFacts:
    """A rank that waits for a message."""
    mail = entry(1, "recv", root=source, peer=source, count=tag)
    return row(rank, pid=pid, mail=mail)


def group(
    *rows: RankFacts,
    name: str = "world",
    fault: FaultFacts | None = None,
    records: Sequence[RankRecords] | None = None,
) -> GroupView:
    """A group of these ranks."""
    return GroupView(name, name, len(rows), fault, list(rows), list(records or [NOTHING for _ in rows]))


def fault(kind: FaultKind, **changes: Any) -> FaultFacts:
    """What broke a group."""
    return FaultFacts(kind, culprit=1, reporter=0, seq=7, text="")._replace(**changes)


def observation(
    *groups: GroupView, states: Mapping[int, str] | None = None, job: JobView | None = None, **changes: Any
) -> Observation:
    """A job with these groups; its processes sleep unless it is said what they do."""
    pids = sorted({each.pid for view in groups for each in view.rows if each.pid})
    processes = [ProcessView(pid, (states or {}).get(pid, "S"), 1 << 20, ["python", "train.py"]) for pid in pids]
    values: dict[str, Any] = {"unix_s": 1000.0, "monotonic_ns": NOW_NS, "host": "box", **changes}
    return Observation(job or JobView(), processes=processes, groups=list(groups), **values)


def stacks(*places: Sequence[Any], is_main: bool = True, ident: int = 77) -> str:
    """What faulthandler writes of a thread: calls as (file, line, function), the innermost first."""
    head = f"{'Current thread' if is_main else 'Thread'} {ident:#018x} (most recent call first):"
    return "\n".join([head, *(f'  File "{file}", line {line} in {name}' for file, line, name in places), ""])
