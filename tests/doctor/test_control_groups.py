"""Limits of control groups, read from files as the kernel writes them."""

from __future__ import annotations

from pathlib import Path

import pytest

from phalanx.doctor.control_groups import ControlGroups


def _write(folder: Path, **files: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / name.replace("__", ".")).write_text(text + "\n")


@pytest.fixture
def second_version(tmp_path: Path) -> ControlGroups:
    """A group inside one that has the limits."""
    mount = tmp_path / "sys"
    _write(tmp_path / "proc", cgroup="0::/outer/inner", mountinfo=f"31 23 0:28 / {mount} rw - cgroup2 cgroup2 rw")
    _write(mount / "outer/inner", memory__max="max", memory__current="100", cpu__max="max 100000", pids__max="max")
    _write(mount / "outer", memory__max="1000", memory__current="300", cpu__max="150000 100000", pids__max="50",
           pids__current="8")  # fmt: skip
    return ControlGroups(tmp_path / "proc")


def test_limits_of_a_group_above_count(second_version: ControlGroups) -> None:
    assert second_version.memory_limit_bytes() == 1000
    assert second_version.memory_left_bytes() == 700
    assert second_version.cores() == 1.5
    assert second_version.processes_left() == 42


def test_the_first_version_has_a_folder_for_each_controller(tmp_path: Path) -> None:
    mounts = "\n".join(
        f"3{number} 31 0:29 / {tmp_path}/{name} rw - cgroup cgroup rw,{name}"
        for number, name in enumerate(("memory", "cpu,cpuacct", "pids"))
    )
    groups = "4:memory:/job\n3:cpu,cpuacct:/job\n2:pids:/job\n1:name=systemd:/\n0::/"
    _write(tmp_path / "proc", cgroup=groups, mountinfo=mounts)
    _write(tmp_path / "memory/job", memory__limit_in_bytes="2000", memory__usage_in_bytes="500")
    _write(tmp_path / "memory", memory__limit_in_bytes="9223372036854771712", memory__usage_in_bytes="900")
    _write(tmp_path / "cpu,cpuacct/job", cpu__cfs_quota_us="300000", cpu__cfs_period_us="100000")
    _write(tmp_path / "pids/job", pids__max="10", pids__current="12")
    found = ControlGroups(tmp_path / "proc")
    assert found.memory_limit_bytes() == 2000
    assert found.memory_left_bytes() == 1500
    assert found.cores() == 3
    assert found.processes_left() == 0


def test_a_container_sees_its_own_group_as_the_root(tmp_path: Path) -> None:
    mount = tmp_path / "sys"
    _write(tmp_path / "proc", cgroup="0::/docker/abc",
           mountinfo=f"31 23 0:28 /docker/abc {mount} rw - cgroup2 cgroup2 rw")  # fmt: skip
    _write(mount, memory__max="1000", memory__current="1")
    assert ControlGroups(tmp_path / "proc").memory_left_bytes() == 999


def test_no_limits(tmp_path: Path) -> None:
    _write(tmp_path / "proc", cgroup="0::/", mountinfo="22 1 8:1 / / rw - ext4 /dev/sda1 rw")
    found = ControlGroups(tmp_path / "proc")
    numbers = (found.memory_limit_bytes(), found.memory_left_bytes(), found.cores(), found.processes_left())
    assert numbers == (None,) * 4


def test_the_groups_of_this_process_can_be_read() -> None:
    cores = ControlGroups().cores()
    assert cores is None or cores > 0
