"""Jobs are found whatever their launchers do at that moment."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator

import pytest

from phalanx.diagnosis.job_list import find_jobs, read_job_record
from phalanx.diagnosis.memory_files import MemoryFile, memory_files
from phalanx.diagnosis.observer import JOB_RECORD

_NUM_LOOKS = 100

_WRITES_ALL_THE_TIME = """
import sys
from phalanx.jobs.job_record import JobRecord

record = JobRecord("always writing", ["train.py"], 600)
print("ready", flush=True)
while True:
    record.write([])
    record.write([1] * 600)
"""

_HOLDS_A_RECORD = """
import sys
from phalanx.jobs.job_record import JobRecord

record = JobRecord("held", ["train.py"], 2)
print(record._descriptor, flush=True)
sys.stdin.read()
"""

# It stands for a child of the launcher, between its fork and its exec.
_OPENS_AND_CLOSES = """
import os, sys, time
print("ready", flush=True)
path = sys.stdin.readline().strip()
while True:
    descriptor = os.open(path, os.O_RDONLY)
    time.sleep(0.0001)  # about as long as it takes to look at a process
    os.close(descriptor)
"""


@contextlib.contextmanager
def _running(program: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def _line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def _names_of(pid: int) -> set[str]:
    return {job.name for _ in range(_NUM_LOOKS) for job in find_jobs() if pid in {*job.pids, job.record.pid}}


def _record_of(pid: int) -> MemoryFile:
    (found,) = memory_files(pid, JOB_RECORD)
    return found


@pytest.mark.slow
def test_a_record_can_be_read_while_it_is_written() -> None:
    with _running(_WRITES_ALL_THE_TIME) as launcher:
        assert _line(launcher) == "ready"
        found = _record_of(launcher.pid)
        assert {read_job_record(found).name for _ in range(3000)} == {"always writing"}


@pytest.mark.slow
def test_a_process_that_closes_the_record_does_not_hide_the_others_that_have_it() -> None:
    with _running(_OPENS_AND_CLOSES) as child, _running(_HOLDS_A_RECORD) as launcher:
        assert _line(child) == "ready"
        assert child.stdin is not None
        child.stdin.write(f"/proc/{launcher.pid}/fd/{_line(launcher)}\n")
        child.stdin.flush()
        assert _names_of(launcher.pid) == {"held"}
        assert "" not in _names_of(child.pid)
