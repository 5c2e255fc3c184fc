"""What a flight record consists of, so that a damaged one is refused before anybody reads on in it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_NUMBER = (int, float)
_SMALLEST, _LARGEST = -(1 << 63), (1 << 64) - 1
_ENTRY = {
    "seq": int,
    "operation": str,
    "dtype": str,
    "device": str,
    "op": str,
    "root": int,
    "peer": int,
    "count": int,
    "size_bytes": int,
    "location": str,
    "is_async": bool,
    "start_ns": int,
    "end_ns": int,
    "shape": [int],
}
_ROW = {
    "rank": int,
    "pid": int,
    "is_thread": bool,
    "is_here": bool,
    "state": str,
    "exit_status": int,
    "arrived": int,
    "launched_pid": int,
    "thread": int,
    "is_debugged": bool,
    "finished": int,
    "sleeps_for": int,
    "entry": (None, _ENTRY),
    "begun": (None, _ENTRY),
    "mail": (None, _ENTRY),
}
_FAULT = {"kind": str, "culprit": int, "reporter": int, "seq": int, "text": str}
_GROUP = {
    "name": str,
    "nonce": str,
    "num_ranks": int,
    "fault": (None, _FAULT),
    "rows": [_ROW],
    "records": [{"operations": [_ENTRY], "messages": [_ENTRY]}],
}
_PROCESS = {"pid": int, "state": str, "resident_bytes": int, "command": [str], "stacks": str}
_RECORD = {
    "job": {},
    "unix_s": _NUMBER,
    "monotonic_ns": int,
    "host": str,
    "processes": [_PROCESS],
    "groups": [_GROUP],
    "notes": [str],
    "reason": str,
}
_JOB = {"name": str, "pid": int, "num_ranks": int, "started_unix": _NUMBER, "pids": [int], "command": [str]}


def check_record(data: Any) -> None:
    """Refuse what is not an observation as plain data.

    Raises:
        ValueError: Something is missing, or not of its kind.
    """
    _check(data, _RECORD)
    check_job(data["job"])
    for group in data["groups"]:
        _check_numbers(group)


def check_job(data: Any) -> None:
    """Refuse what is not what a launcher says of its job; it may say less.

    Raises:
        ValueError: Something is not of its kind.
    """
    _check(data, {})
    _check(data, {name: form for name, form in _JOB.items() if name in data})


def _check(value: Any, form: Any) -> None:
    """Compare with a form: a type, a list of one form, a dictionary of forms, or a choice of some."""
    if isinstance(form, dict):
        if not isinstance(value, dict) or not form.keys() <= value.keys():
            raise ValueError("something is missing")
        for name, each in form.items():
            _check(value[name], each)
    elif isinstance(form, list):
        if not isinstance(value, list):
            raise ValueError("not a list")
        for each in value:
            _check(each, form[0])
    elif isinstance(form, tuple) and form[0] is None:
        if value is not None:
            _check(value, form[1])
    elif not isinstance(value, form):
        raise ValueError("of another kind")
    elif isinstance(value, int | float) and not _SMALLEST <= value <= _LARGEST:  # not a number is neither
        raise ValueError("no number that phalanx writes")


def _check_numbers(group: Mapping[str, Any]) -> None:
    num_ranks = group["num_ranks"]
    rows = group["rows"]
    used = [*(row["sleeps_for"] for row in rows), *(row["mail"]["root"] for row in rows if row["mail"] is not None)]
    used += [entry["peer"] for each in group["records"] for entry in each["messages"]]
    if group["fault"] is not None:
        used += [group["fault"]["culprit"], group["fault"]["reporter"]]
    if not len(rows) == len(group["records"]) == num_ranks or [row["rank"] for row in rows] != list(range(num_ranks)):
        raise ValueError("not all ranks are there")
    if any(not -1 <= rank < num_ranks for rank in used):
        raise ValueError("a rank that does not exist")
