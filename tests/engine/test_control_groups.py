"""Limits of control groups, read from files as the kernel writes them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from phalanx.engine import ControlGroups, available_memory_bytes, usable_cores
from tests.engine.real_control_groups import ControlGroup, new_group


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
    return ControlGroups(str(tmp_path / "proc"))


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
    found = ControlGroups(str(tmp_path / "proc"))
    assert found.memory_limit_bytes() == 2000
    assert found.memory_left_bytes() == 1500
    assert found.cores() == 3
    assert found.processes_left() == 0


def test_a_container_sees_its_own_group_as_the_root(tmp_path: Path) -> None:
    mount = tmp_path / "sys"
    _write(tmp_path / "proc", cgroup="0::/docker/abc",
           mountinfo=f"31 23 0:28 /docker/abc {mount} rw - cgroup2 cgroup2 rw")  # fmt: skip
    _write(mount, memory__max="1000", memory__current="1")
    assert ControlGroups(str(tmp_path / "proc")).memory_left_bytes() == 999


@pytest.mark.parametrize("root", ["/system/other", "/job/in", "/job/inner/most"])
@pytest.mark.parametrize("is_first", [False, True])
def test_limits_of_groups_that_are_mounted_elsewhere_are_those_of_others(
    tmp_path: Path, root: str, is_first: bool
) -> None:
    own, another = tmp_path / "sys", tmp_path / "another"
    mounts = [f"31 23 0:28 / {own} rw - cgroup2 cgroup2 rw", f"45 23 0:28 {root} {another} rw - cgroup2 cgroup2 rw"]
    _write(tmp_path / "proc", cgroup="0::/job/inner", mountinfo="\n".join(mounts[::-1] if is_first else mounts))
    _write(own / "job", memory__max="7000", memory__current="500", cpu__max="200000 100000")
    _write(another, memory__max="100", memory__current="99", cpu__max="50000 100000", pids__max="1")
    found = ControlGroups(str(tmp_path / "proc"))
    assert (found.memory_limit_bytes(), found.memory_left_bytes(), found.cores()) == (7000, 6500, 2)
    assert found.processes_left() is None


def test_of_two_mounts_the_one_that_shows_more_groups_above_counts(tmp_path: Path) -> None:
    whole, part = tmp_path / "sys", tmp_path / "part"
    mounts = f"31 23 0:28 / {whole} rw - cgroup2 cgroup2 rw\n45 23 0:28 /job/inner {part} rw - cgroup2 cgroup2 rw"
    _write(tmp_path / "proc", cgroup="0::/job/inner", mountinfo=mounts)
    _write(whole / "job", memory__max="7000")
    _write(part, memory__max="max")
    assert ControlGroups(str(tmp_path / "proc")).memory_limit_bytes() == 7000


def test_no_limits(tmp_path: Path) -> None:
    _write(tmp_path / "proc", cgroup="0::/", mountinfo="22 1 8:1 / / rw - ext4 /dev/sda1 rw")
    found = ControlGroups(str(tmp_path / "proc"))
    numbers = (found.memory_limit_bytes(), found.memory_left_bytes(), found.cores(), found.processes_left())
    assert numbers == (None,) * 4


def test_the_groups_of_this_process_can_be_read() -> None:
    cores = ControlGroups().cores()
    assert cores is None or cores > 0


def test_a_mount_point_may_have_spaces_in_its_name(tmp_path: Path) -> None:
    mount = tmp_path / "a b"
    escaped = str(mount).replace(" ", "\\040")
    _write(tmp_path / "proc", cgroup="0::/", mountinfo=f"31 23 0:28 / {escaped} rw - cgroup2 cgroup2 rw")
    _write(mount, pids__max="5", pids__current="1")
    assert ControlGroups(str(tmp_path / "proc")).processes_left() == 4


def test_the_cache_of_files_counts_as_available(tmp_path: Path) -> None:
    stat = "anon 200\ninactive_file 500\nactive_file 100\nslab_reclaimable 50\nslab_unreclaimable 9"
    _write(tmp_path / "proc", cgroup="0::/", mountinfo=f"31 23 0:28 / {tmp_path} rw - cgroup2 cgroup2 rw")
    _write(tmp_path, memory__max="1000", memory__current="990", memory__stat=stat)
    assert ControlGroups(str(tmp_path / "proc")).memory_left_bytes() == 660
    assert available_memory_bytes(str(tmp_path / "proc")) == 660


def test_the_cache_of_files_counts_as_available_in_the_first_version(tmp_path: Path) -> None:
    stat = "cache 700\ninactive_file 1\nhierarchical_memory_limit 900\ntotal_inactive_file 400\ntotal_active_file 200"
    _write(tmp_path / "proc", cgroup="4:memory:/", mountinfo=f"31 23 0:28 / {tmp_path} rw - cgroup cgroup rw,memory")
    _write(tmp_path, memory__limit_in_bytes="1000", memory__usage_in_bytes="850", memory__stat=stat)
    found = ControlGroups(str(tmp_path / "proc"))
    assert (found.memory_limit_bytes(), found.memory_left_bytes()) == (900, 650)


def test_a_quota_of_part_of_a_core_is_one_core(tmp_path: Path) -> None:
    _write(tmp_path / "proc", cgroup="0::/", mountinfo=f"31 23 0:28 / {tmp_path} rw - cgroup2 cgroup2 rw")
    for quota, cores in (("50000", 1), ("150000", 2), ("max", len(os.sched_getaffinity(0)))):
        _write(tmp_path, cpu__max=f"{quota} 100000")
        assert usable_cores(str(tmp_path / "proc")) == min(cores, len(os.sched_getaffinity(0)))


_READ_AND_ASK = """
import sys
from phalanx.engine import ControlGroups, available_memory_bytes, usable_cores
with open(sys.argv[1], "rb") as file:
    while file.read(1 << 20):
        pass
print(usable_cores(), ControlGroups().memory_left_bytes() or 0, available_memory_bytes())
"""


def _ask_inside(group: ControlGroup, path: Path) -> list[int]:
    done = subprocess.run(
        [sys.executable, "-c", _READ_AND_ASK, str(path)],
        preexec_fn=group.enter, capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    return [int(word) for word in done.stdout.split()]


@pytest.mark.slow
def test_a_real_group_with_a_quota_has_that_many_cores(tmp_path: Path) -> None:
    file = tmp_path / "none"
    file.write_bytes(b"")
    with new_group("cpu", tmp_path.name) as group:
        group.limit_cores(0.5)
        assert _ask_inside(group, file)[0] == 1


@pytest.mark.slow
def test_a_real_group_has_its_memory_after_it_has_read_a_large_file(tmp_path: Path) -> None:
    file = tmp_path / "data"
    with file.open("wb") as stream:
        for _ in range(200):
            stream.write(os.urandom(1 << 20))
        os.fsync(stream.fileno())
        os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    with new_group("memory", tmp_path.name) as group:
        group.limit_memory(256 << 20)
        _, left, available = _ask_inside(group, file)
        assert group.most_used_bytes() > 150 << 20, "the file went into the cache on this group's account"
        # They were read one after the other, and the kernel may have freed memory in between.
        assert 128 << 20 < left <= 256 << 20
        assert 128 << 20 < available <= 256 << 20
