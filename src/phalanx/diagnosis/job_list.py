"""The running jobs that this user may see, found through /proc."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field, replace

from phalanx.diagnosis.formatting import visible
from phalanx.diagnosis.memory_files import MemoryFile, memory_files, open_memory_file
from phalanx.diagnosis.observer import GROUP_PREFIX, JOB_RECORD
from phalanx.diagnosis.plain_data import from_plain
from phalanx.diagnosis.processes import command_of, is_readable, owner_of, parent_of, visible_pids
from phalanx.diagnosis.views import JobView
from phalanx.errors import UsageError

_RECORD_BYTES = 1 << 20
_LOOKS = 5


@dataclass
class RunningJob:
    """Processes that have groups in common, and their launcher.

    Attributes:
        pids: Its processes.
        record: What its launcher says about it.
    """

    pids: set[int]
    record: JobView = field(default_factory=JobView)

    @property
    def name(self) -> str:
        """The name of the job."""
        return self.record.name

    def title(self) -> str:
        """Say in a line which job it is."""
        command = self.record.command or command_of(min(self.pids))
        shown = " ".join(word.rpartition("/")[2] or word for word in command)[:80]
        number = self.record.pid or min(self.pids)
        ranks = f"  {self.record.num_ranks} ranks" if self.record.num_ranks else ""
        return visible(f"pid {number}{f'  {self.name}' if self.name else ''}{ranks}  {shown}")


def find_jobs() -> list[RunningJob]:
    """Return all jobs of this user: those that have a launcher, and those whose processes only share a group."""
    records: dict[tuple[int, int], RunningJob] = {}
    groups: dict[tuple[int, int], set[int]] = {}

    def is_known(found: MemoryFile) -> bool:
        # Forked children have the record too. One that closed it before it could be read does not count.
        return found.identity in records and records[found.identity].record != JobView()

    for pid in visible_pids():
        for found in memory_files(pid, "phalanx"):
            if found.name.startswith(GROUP_PREFIX):
                groups.setdefault(found.identity, set()).add(pid)
            elif found.name == JOB_RECORD and not is_known(found):
                record = read_job_record(found)
                records[found.identity] = RunningJob({pid, *record.pids} - {0}, record)
    jobs = list(records.values())
    for members in groups.values():
        touched = [job for job in jobs if job.pids & members]
        merged = RunningJob(members.union(*(job.pids for job in touched)))
        merged.record = next((job.record for job in touched if job.record != JobView()), JobView())
        jobs = [job for job in jobs if job not in touched] + [merged]
    return sorted(jobs, key=lambda job: min(job.pids))


def read_job_record(found: MemoryFile) -> JobView:
    """Read a launcher's record of its job; return an empty one if it is not complete or not a record."""
    descriptor = open_memory_file(found)
    if descriptor is None:
        return JobView()
    try:
        record = _parse_record(descriptor)
    finally:
        os.close(descriptor)
    # A record may name only processes of its own user, so that nobody can add processes of others to a job. A rank that
    # has ended keeps its place, so that the others keep their numbers.
    pids = [pid if owner_of(pid) == found.owner else 0 for pid in record.pids]
    return replace(record, pids=pids, pid=record.pid if owner_of(record.pid) == found.owner else 0)


def _parse_record(descriptor: int) -> JobView:
    for _ in range(_LOOKS):
        try:
            return from_plain(JobView, json.loads(os.pread(descriptor, _RECORD_BYTES, 0)))
        except (OSError, ValueError, RecursionError):
            continue  # its launcher may be writing it
    return JobView()


def choose_job(wanted: str | None) -> RunningJob:
    """Return the job with this process or name, or the only one.

    Raises:
        UsageError: There is no such job, there are several, or it belongs to another user.
    """
    jobs = find_jobs()
    if wanted is None:
        if len(jobs) == 1:
            return jobs[0]
        if not jobs:
            raise UsageError("no job of phalanx runs here under this user")
        listed = "".join(f"\n  {job.title()}" for job in jobs)
        raise UsageError(f"{len(jobs)} jobs run here; say which by its process or its name{listed}")
    # Look for a process first: another user may have given a job this number as its name.
    found = _jobs_of_process(int(wanted), jobs) if wanted.isdecimal() else []
    found = found or [job for job in jobs if job.name == wanted]
    if len(found) == 1:
        return found[0]
    if len(found) > 1:
        listed = "".join(f"\n  {job.title()}" for job in found)
        which = f'are called "{wanted}"' if found[0].name == wanted else f"were started by process {wanted}"
        raise UsageError(f"{len(found)} jobs {which}; say which by its process{listed}")
    raise UsageError(_why_not(wanted, jobs))


def _jobs_of_process(number: int, jobs: list[RunningJob]) -> list[RunningJob]:
    """Return the jobs of a process; if it is in none, those that it has started, perhaps through other processes."""
    found = [job for job in jobs if number in {*job.pids, job.record.pid} - {0}]
    if found:
        return found
    started = [(job, above) for job in jobs if number in (above := _ancestors_of(job.pids))]
    # A job that a rank of another one has started does not count.
    return [job for job, above in started if not any(above & other.pids for other, _ in started if other is not job)]


def _ancestors_of(pids: set[int]) -> set[int]:
    found: set[int] = set()
    above = {parent_of(pid) for pid in pids} - {0}
    while above:
        found |= above
        above = {parent_of(pid) for pid in above} - found - {0}
    return found


def follow_job(job: RunningJob) -> RunningJob | None:
    """Return a job with the processes that it has now; None if all processes that it had are gone."""
    return next((now for now in find_jobs() if now.pids & job.pids), None)


def _why_not(wanted: str, jobs: list[RunningJob]) -> str:
    if wanted.isdecimal():
        pid = int(wanted)
        if owner_of(pid) is None:
            return f"there is no process {pid}"
        if not is_readable(pid):
            return f"process {pid} belongs to another user; only that user (or root) may look at it"
        return (
            f"process {pid} is in no group of phalanx (or has closed them all)"
            "\n  do       start the program with phalanx run: then phalanx diagnose sees its ranks from the start"
        )
    listed = "".join(f"\n  {job.title()}" for job in jobs) or "\n  none"
    return f'no job is called "{wanted}", and there is no such file; jobs that run here:{listed}'
