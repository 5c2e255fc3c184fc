"""A whole job at one moment: its processes, its groups, the last operations of every rank.

`phalanx diagnose` shows an observation, of a running job or from a flight record. A flight record is an observation as
JSON.
"""

from __future__ import annotations

import errno
import json
import os
import time
from collections.abc import Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path

from phalanx.diagnosis.asking import ask_for_stacks
from phalanx.diagnosis.memory_files import memory_files
from phalanx.diagnosis.observer import GROUP_PREFIX, Observer
from phalanx.diagnosis.plain_data import from_plain, to_plain
from phalanx.diagnosis.processes import command_of, descendants_of, resident_bytes, state_of, threads_of
from phalanx.diagnosis.views import GroupView, JobView, ProcessView, view_of
from phalanx.engine import GroupSegment
from phalanx.engine.facts import RankRecords, far_rank
from phalanx.errors import UsageError
from phalanx.plain_files import open_plain_file

FORMAT = "phalanx flight record"
VERSION = 1
_MOST_ENTRIES = 300_000  # in the journals of all ranks: about half a gigabyte
_MOST_BYTES = 1 << 30  # the size of a flight record
_MOST_CHILDREN = 64  # of each rank
_MOST_THREADS = 100  # of each process, beside those that are ranks


@dataclass
class Observation:
    """A job at one moment.

    Attributes:
        job: What its launcher says about it.
        reason: Why the record was written; empty if somebody ran `phalanx diagnose`.
        unix_s: The time, as a Unix time.
        monotonic_ns: The same moment on the clock of the operations.
        host: The machine.
        processes: Its processes.
        groups: Its groups, with the last operations of each rank.
        notes: What could not be seen, and why.
        other_hosts: The other hosts of the job at the same moment, each with its name; empty if there is only one.
    """

    job: JobView
    unix_s: float
    monotonic_ns: int
    host: str
    processes: list[ProcessView] = field(default_factory=list)
    groups: list[GroupView] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    reason: str = ""
    other_hosts: list[HostObservation] = field(default_factory=list)


@dataclass
class HostObservation:
    """What another host of the job says.

    Attributes:
        title: The host, for people.
        seen: Its part of the job; None if it has not answered in time.
    """

    title: str
    seen: Observation | None


def observe(pids: Sequence[int], job: JobView | None = None, *, with_stacks: bool = True) -> Observation:
    """Observe the groups of these processes, all their members, and the members' stacks."""
    observer = Observer(is_writable=False)
    observer.look(pids)
    members = {row.pid for group in observer.groups for row in group.snapshot() if row.is_here and row.pid}
    others = _still_members(members - set(pids), pids)
    everybody = sorted({*pids, *others})
    if others:
        observer.look(everybody)
    seen = describe(observer.groups, everybody, job or JobView(), with_stacks=with_stacks)
    if observer.num_strange:
        seen.notes.append(
            f"{observer.num_strange} groups can't be read: they are of another version of phalanx, damaged, or too many"
        )
    observer.close()
    return seen


def _still_members(candidates: Set[int], pids: Sequence[int]) -> set[int]:
    """Leave out processes that have ended, because their numbers may belong to other processes now."""
    if not candidates:
        return set()
    known = {found.identity for pid in pids for found in memory_files(pid, GROUP_PREFIX)}
    return {pid for pid in candidates if any(found.identity in known for found in memory_files(pid, GROUP_PREFIX))}


def describe(
    groups: Sequence[GroupSegment],
    pids: Sequence[int],
    job: JobView,
    *,
    with_stacks: bool,
    timeout_s: float = 0.5,
) -> Observation:
    """Describe these groups and processes and what these have started, with the stacks of those that answer in time."""
    threads: dict[int, list[int]] = {}
    known = set(pids)
    ranks = known.intersection(job.pids)
    for row in (row for group in groups for row in group.snapshot()):
        if row.any_pid in known:
            ranks.add(row.any_pid)
        if row.state == "present":
            threads.setdefault(row.pid, []).append(row.thread)
    # A process that a rank has forked may be among `pids`, because it has inherited the rank's memory files.
    children = {
        child: pid for pid in ranks or pids for child in descendants_of(pid, _MOST_CHILDREN) if child not in ranks
    }
    everybody = list(dict.fromkeys([*pids, *children]))
    for pid in everybody:  # the ranks first, because the time may not be enough for all threads
        threads.setdefault(pid, []).extend(threads_of(pid)[:_MOST_THREADS])
    answers = ask_for_stacks(everybody, threads, timeout_s=timeout_s) if with_stacks else {}
    seen = Observation(job, time.time(), time.monotonic_ns(), os.uname().nodename)
    seen.processes = [
        ProcessView(
            pid, state_of(pid), resident_bytes(pid), command_of(pid), answers.get(pid, ""), children.get(pid, 0)
        )
        for pid in everybody
    ]
    num_entries = 0
    for group in groups:
        records = []
        for rank in range(group.num_ranks):
            past = group.records(rank) if num_entries < _MOST_ENTRIES else RankRecords([], [])
            num_entries += len(past.operations) + len(past.messages)
            records.append(past)
        seen.groups.append(view_of(group, records))
    if num_entries >= _MOST_ENTRIES:
        seen.notes.append(f"only {num_entries} past operations are shown, of the ranks that come first")
    return seen


def to_json(observation: Observation) -> str:
    """Write an observation as a flight record."""
    return json.dumps({"format": FORMAT, "version": VERSION, **to_plain(observation)}, indent=1)


def from_json(text: str, source: str) -> Observation:
    """Read a flight record.

    Raises:
        UsageError: The text is not a flight record, or has an unknown version.
    """
    try:
        data = json.loads(text)
        if data["format"] != FORMAT:
            raise KeyError("format")
        version = data["version"]
        if not isinstance(version, int):
            raise TypeError("version")
        if version != VERSION:
            raise UsageError(f"{source}: a flight record of version {version}; this phalanx reads version {VERSION}")
        seen = from_plain(Observation, data)
        for group in seen.groups:
            _check_ranks(group)
        return seen
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        if isinstance(error, UsageError):
            raise
        raise UsageError(f"{source}: not a flight record of phalanx") from None


def _check_ranks(group: GroupView) -> None:
    used = [*(row.sleeps_for for row in group.rows), *(row.mail.root for row in group.rows if row.mail is not None)]
    used += [entry.peer for each in group.records for entry in each.messages]
    used = [rank for rank in used if far_rank(rank) is None]
    if group.fault is not None:
        used += [group.fault.culprit, group.fault.reporter]
    ranks = list(range(group.num_ranks))
    if len(group.records) != group.num_ranks or [row.rank for row in group.rows] != ranks:
        raise ValueError("not all ranks are there")
    if any(not -1 <= rank < group.num_ranks for rank in used):
        raise ValueError("a rank that does not exist")


def read_record(path: Path) -> Observation:
    """Read a flight record from a file.

    Raises:
        UsageError: The file can't be read, or is not a flight record.
    """
    try:
        with open_plain_file(path) as file:
            if os.fstat(file.fileno()).st_size > _MOST_BYTES:
                raise OSError(errno.EFBIG, f"it has more than {_MOST_BYTES >> 20} MiB, so it is no flight record")
            text = file.read(_MOST_BYTES).decode()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: can't be read: {getattr(error, 'strerror', None) or error}") from None
    return from_json(text, str(path))
