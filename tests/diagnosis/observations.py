"""Made-up groups, ranks and operations for tests from literals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from phalanx.diagnosis.observation import Observation, ProcessView

NOW_NS = 100_000_000_000


def entry(seq: int = 7, operation: str = "all_reduce", *, ago_s: float = 5.0, **changes: Any) -> dict[str, Any]:
    """An operation that began so long ago and has not ended."""
    return {
        "seq": seq,
        "operation": operation,
        "dtype": "float32",
        "device": "cpu",
        "op": "sum",
        "root": 0,
        "peer": 0,
        "count": 4,
        "size_bytes": 16,
        "location": "/home/me/train.py:61",
        "is_async": False,
        "start_ns": NOW_NS - int(ago_s * 1e9),
        "end_ns": 0,
        "seconds_ago": ago_s,
        "shape": [4],
        **changes,
    }


def row(rank: int, *, pid: int | None = None, **changes: Any) -> dict[str, Any]:
    """A rank that has left operation 6 and is in no other."""
    return {
        "rank": rank,
        "pid": 800 + rank if pid is None else pid,
        "is_thread": False,
        "is_here": True,
        "state": "present",
        "exit_status": -1,
        "arrived": 6,
        "launched_pid": 0,
        "thread": 77,
        "is_debugged": False,
        "finished": 6,
        "messages": 0,
        "moved_bytes": 0,
        "sleeps_for": -1,
        "entry": entry(6, end_ns=NOW_NS),
        "begun": None,
        "mail": None,
        **changes,
    }


def waiting(rank: int, sleeps_for: int, *, pid: int | None = None, **changes: Any) -> dict[str, Any]:
    """A rank that waits in operation 7."""
    return row(rank, pid=pid, arrived=7, sleeps_for=sleeps_for, entry=entry(**changes))


def receiving(rank: int, source: int, *, pid: int | None = None, tag: int = 0) -> dict[str, Any]:
    """A rank that waits for a message."""
    mail = entry(1, "recv", root=source, peer=source, count=tag)
    return row(rank, pid=pid, mail=mail)


def group(
    *rows: Mapping[str, Any], name: str = "world", fault: Mapping[str, Any] | None = None, records: Any = None
) -> dict[str, Any]:
    """A group of these ranks."""
    nothing: list[dict[str, list[Any]]] = [{"operations": [], "messages": []} for _ in rows]
    return {
        "name": name,
        "nonce": name,
        "num_ranks": len(rows),
        "fault": fault,
        "rows": list(rows),
        "records": nothing if records is None else records,
    }


def fault(kind: str, **changes: Any) -> dict[str, Any]:
    """What broke a group."""
    return {"kind": kind, "culprit": 1, "reporter": 0, "seq": 7, "text": "", **changes}


def observation(*groups: Mapping[str, Any], states: Mapping[int, str] | None = None, **changes: Any) -> Observation:
    """A job with these groups; its processes sleep unless it is said what they do."""
    pids = sorted({each["pid"] for view in groups for each in view["rows"] if each["pid"]})
    processes = [ProcessView(pid, (states or {}).get(pid, "S"), 1 << 20, ["python", "train.py"]) for pid in pids]
    values: dict[str, Any] = {"job": {}, "unix_s": 1000.0, "monotonic_ns": NOW_NS, "host": "box", **changes}
    return Observation(processes=processes, groups=list(map(dict, groups)), **values)


def stacks(*places: Sequence[Any], is_main: bool = True, ident: int = 77) -> str:
    """What faulthandler writes of a thread: calls as (file, line, function), the innermost first."""
    head = f"{'Current thread' if is_main else 'Thread'} {ident:#018x} (most recent call first):"
    return "\n".join([head, *(f'  File "{file}", line {line} in {name}' for file, line, name in places), ""])
