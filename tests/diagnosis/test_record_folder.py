"""The folder of flight records."""

from __future__ import annotations

import os
import re
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from phalanx.diagnosis.observation import Observation, read_record
from phalanx.diagnosis.record_folder import write_record
from phalanx.diagnosis.views import JobView
from phalanx.errors import PhalanxError
from tests.diagnosis.observations import group, observation, row, waiting


def _seen(unix_s: float = 1000.0, **job: Any) -> Observation:
    return observation(group(waiting(0, 1), row(1)), job=JobView(**job), unix_s=unix_s)


def test_a_record_is_named_after_job_time_and_process(tmp_path: Path) -> None:
    path = write_record(_seen(1000.25, name="night run/7", pid=812), tmp_path)
    assert re.fullmatch(r"night-run-7-19700101-\d{6}\.250-812\.json", path.name)
    assert [path] == list(tmp_path.iterdir())
    assert path.stat().st_mode & 0o777 == 0o600
    assert read_record(path).groups == _seen().groups


@pytest.mark.parametrize(
    ("job", "name"),
    [
        ({}, "train-"),
        ({"command": ["python", "-u", "/home/me/fit model.py", "--lr=1"]}, "fit-model-"),
        ({"command": ["/usr/bin/solver", "x"]}, "solver-"),
        ({"name": "../.."}, "job-"),
        ({"name": "ä" * 500}, "job-"),
        ({"name": "a" * 500}, "a" * 60 + "-"),
    ],
)
def test_names_are_safe_and_short(tmp_path: Path, job: dict[str, Any], name: str) -> None:
    path = write_record(_seen(**job), tmp_path)
    assert path.parent == tmp_path
    assert re.fullmatch(re.escape(name) + r"\d{8}-\d{6}\.\d{3}-\d+\.json", path.name)


def test_the_folder_is_made_for_this_user_alone(tmp_path: Path) -> None:
    path = write_record(_seen(), tmp_path / "cache" / "records")
    assert path.parent.stat().st_mode & 0o777 == 0o700


def test_only_the_newest_are_kept_and_other_files_left_alone(tmp_path: Path) -> None:
    other = tmp_path / "notes-of-mine.json"
    other.touch()
    pointer = tmp_path / "link-20200101-000000.000-1.json"
    pointer.symlink_to(other)
    written = []
    for number in range(5):
        written.append(write_record(_seen(1000.0 + number), tmp_path, keep=10))
        os.utime(written[-1], ns=(number, number))
    last = write_record(_seen(1005.0), tmp_path, keep=3)
    assert sorted(tmp_path.iterdir()) == sorted([other, pointer, *written[3:], last])


def _in_a_child(action: Callable[[], object]) -> str:
    """Call it in a process of its own, and return the words of the error that it raised."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            action()
        except PhalanxError as error:
            os.write(writing, str(error).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with open(reading) as stream:
        told = stream.read()
    os.waitpid(child, 0)
    return told


def test_a_full_disk_is_told_and_leaves_nothing(tmp_path: Path) -> None:
    def write() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
        write_record(_seen(), tmp_path)

    assert _in_a_child(write) == (
        f"the flight record can't be written to {tmp_path}: File too large\n"
        "  do       make room there, or name another folder with PHALANX_RECORD_DIR"
    )
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_may_not_be_written_is_told(tmp_path: Path) -> None:
    def write() -> None:
        if os.getuid() == 0:
            os.setuid(65534)
        write_record(_seen(), tmp_path)

    tmp_path.chmod(0o555)
    assert f"can't be written to {tmp_path}: Permission denied" in _in_a_child(write)


def test_a_file_in_the_way_is_told(tmp_path: Path) -> None:
    (tmp_path / "records").touch()
    with pytest.raises(PhalanxError, match=r"can't be written to .*: File exists") as failure:
        write_record(_seen(), tmp_path / "records")
    advice = f"  do       {tmp_path / 'records'} is a file; name another folder with PHALANX_RECORD_DIR"
    assert str(failure.value).splitlines()[1:] == [advice]
    with pytest.raises(PhalanxError, match=r"can't be written to .*: Not a directory") as failure:
        write_record(_seen(), tmp_path / "records" / "of" / "mine")
    assert str(failure.value).splitlines()[1:] == [advice]
