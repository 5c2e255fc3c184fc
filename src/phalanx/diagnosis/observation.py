"""A whole job as plain data: its processes, its groups, the last operations of every rank.

The same for a job that runs and for one that is long over: what `phalanx diagnose` shows is read from here, and what a
flight record holds is this as JSON.
"""

from __future__ import annotations

import errno
import json
import os
import time
from collections.abc import Sequence, Set
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from phalanx.diagnosis.asking import ask_for_stacks
from phalanx.diagnosis.memory_files import memory_files
from phalanx.diagnosis.observer import GROUP_PREFIX, Observer, view_of
from phalanx.diagnosis.processes import command_of, resident_bytes, state_of
from phalanx.diagnosis.record_format import check_record
from phalanx.engine import GroupSegment
from phalanx.errors import UsageError
from phalanx.plain_files import open_plain_file

FORMAT = "phalanx flight record"
VERSION = 1
_MOST_ENTRIES = 300_000  # of the past of all ranks: about half a gigabyte
_MOST_BYTES = 1 << 30  # of a record


@dataclass
class ProcessView:
    """A process of a job.

    Attributes:
        pid: Its number.
        state: The kernel's letter for what it does; empty when it is gone.
        resident_bytes: Its memory.
        command: Its command line.
        stacks: Where its threads stand, as faulthandler writes it; empty when it did not answer.
    """

    pid: int
    state: str
    resident_bytes: int
    command: list[str]
    stacks: str = ""


@dataclass
class Observation:
    """A job at one moment.

    Attributes:
        job: What its launcher says of it: name, command, pid, num_ranks, started_unix, pids; empty without one.
        reason: Why it was written down; empty when somebody just looked.
        unix_s: The time, as people count.
        monotonic_ns: The same moment on the clock of the operations.
        host: The machine.
        processes: Its processes.
        groups: Its groups: name, nonce, num_ranks, fault, rows, and records with the past of each rank.
        notes: What could not be seen, and why.
    """

    job: dict[str, Any]
    unix_s: float
    monotonic_ns: int
    host: str
    processes: list[ProcessView] = field(default_factory=list)
    groups: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    reason: str = ""

    def pids(self) -> list[int]:
        """Return the processes of its ranks, in order, if its launcher told them."""
        return list(self.job.get("pids") or [])


def observe(pids: Sequence[int], job: dict[str, Any] | None = None, *, with_stacks: bool = True) -> Observation:
    """Look at the groups of these processes, at all members of them, and at where they stand."""
    observer = Observer(is_writable=False)
    observer.look(pids)
    members = {row["pid"] for group in observer.groups for row in group.snapshot() if row["is_here"] and row["pid"]}
    others = _still_members(members - set(pids), pids)
    everybody = sorted({*pids, *others})
    if others:
        observer.look(everybody)
    seen = describe(observer.groups, everybody, job or {}, with_stacks=with_stacks)
    if observer.num_strange:
        seen.notes.append(
            f"{observer.num_strange} groups can't be read: they are of another version of phalanx, damaged, or too many"
        )
    observer.close()
    return seen


def _still_members(candidates: Set[int], pids: Sequence[int]) -> set[int]:
    """Leave out numbers of processes that have ended, which may be somebody else's by now."""
    if not candidates:
        return set()
    known = {found.identity for pid in pids for found in memory_files(pid, GROUP_PREFIX)}
    return {pid for pid in candidates if any(found.identity in known for found in memory_files(pid, GROUP_PREFIX))}


def describe(
    groups: Sequence[GroupSegment],
    pids: Sequence[int],
    job: dict[str, Any],
    *,
    with_stacks: bool,
    timeout_s: float = 0.5,
) -> Observation:
    """Write down these groups and processes; those that do not say in time where they stand go without."""
    threads: dict[int, list[int]] = {}
    for row in (row for group in groups for row in group.snapshot() if row["state"] == "present"):
        threads.setdefault(row["pid"], []).append(row["thread"])
    answers = ask_for_stacks(pids, threads, timeout_s=timeout_s) if with_stacks else {}
    seen = Observation(job, time.time(), time.monotonic_ns(), os.uname().nodename)
    seen.processes = [
        ProcessView(pid, state_of(pid), resident_bytes(pid), command_of(pid), answers.get(pid, "")) for pid in pids
    ]
    num_entries = 0
    for group in groups:
        records = []
        for rank in range(group.num_ranks):
            past = group.records(rank) if num_entries < _MOST_ENTRIES else {"operations": [], "messages": []}
            num_entries += len(past["operations"]) + len(past["messages"])
            records.append(past)
        seen.groups.append({**view_of(group), "records": records})
    if num_entries >= _MOST_ENTRIES:
        seen.notes.append(f"only {num_entries} past operations are shown, of the ranks that come first")
    return seen


def to_json(observation: Observation) -> str:
    """Write an observation as a flight record."""
    return json.dumps({"format": FORMAT, "version": VERSION, **asdict(observation)}, indent=1)


def from_json(text: str, source: str) -> Observation:
    """Read a flight record.

    Raises:
        UsageError: It is none, or of a version that this one does not know.
    """
    try:
        data = json.loads(text)
        if data.pop("format") != FORMAT:
            raise KeyError("format")
        version = data.pop("version")
        if not isinstance(version, int):
            raise TypeError("version")
        if version != VERSION:
            raise UsageError(f"{source}: a flight record of version {version}; this phalanx reads version {VERSION}")
        check_record(data)
        processes = [ProcessView(**process) for process in data.pop("processes")]
        return Observation(processes=processes, **data)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        if isinstance(error, UsageError):
            raise
        raise UsageError(f"{source}: not a flight record of phalanx") from None


def read_record(path: Path) -> Observation:
    """Read a flight record from a file.

    Raises:
        UsageError: There is none.
    """
    try:
        with open_plain_file(path) as file:
            if os.fstat(file.fileno()).st_size > _MOST_BYTES:
                raise OSError(errno.EFBIG, f"it has more than {_MOST_BYTES >> 20} MiB, as no flight record has")
            text = file.read(_MOST_BYTES).decode()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: can't be read: {getattr(error, 'strerror', None) or error}") from None
    return from_json(text, str(path))
