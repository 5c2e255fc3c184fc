"""Cores, memory and /dev/shm, in words."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from phalanx.doctor.machine import cores, memory, shared_memory_folder


def _limited(folder: Path, **limits: str) -> str:
    """Write what the kernel writes of a control group with these limits."""
    (folder / "cgroup").write_text("0::/\n")
    (folder / "mountinfo").write_text(f"31 23 0:28 / {folder} rw - cgroup2 cgroup2 rw\n")
    for name, limit in limits.items():
        (folder / name.replace("_", ".")).write_text(f"{limit}\n")
    return str(folder)


def test_cores_are_counted(tmp_path: Path) -> None:
    answer = cores(_limited(tmp_path))
    assert answer.status == "ok"
    assert answer.text.startswith(f"{len(os.sched_getaffinity(0))} usable of {os.cpu_count()}")


def test_a_quota_below_the_cores_is_a_note(tmp_path: Path) -> None:
    answer = cores(_limited(tmp_path, cpu_max="50000 100000"))
    assert answer.status == "note"
    assert "the control group grants the time of 0.5" in answer.text
    assert answer.advice == "Use at most 1 ranks, or give the container more than 0.5 cores."


def test_memory_is_named_with_its_limit(tmp_path: Path) -> None:
    assert re.fullmatch(r"[\d.]+ [GTM]iB available of [\d.]+ [GT]iB", memory(_limited(tmp_path)).text)
    little = memory(_limited(tmp_path, memory_max=str(100 << 20)))
    assert little.status == "note"
    assert little.text.startswith("100 MiB available of ")
    assert little.text.endswith("; the control group allows 100 MiB")
    assert little.advice.startswith("Free memory or raise its limit")
    assert memory(_limited(tmp_path, memory_max=str(1 << 20))).status == "problem"


def test_no_dev_shm_does_not_keep_ranks_from_running(tmp_path: Path) -> None:
    answer = shared_memory_folder(tmp_path / "shm")
    assert answer.status == "note"
    assert answer.text.startswith("not there: phalanx does without it; DataLoader workers")
    assert answer.advice.endswith("if you use DataLoader workers or NCCL.")


def test_what_lies_in_dev_shm_is_named(tmp_path: Path) -> None:
    for name in ("nccl-aaa", "nccl-bbb", "torch_123_0", ".hidden"):
        (tmp_path / name).write_bytes(b"x" * 8192)
    assert re.search(r"nccl\* 16.0 KiB, .*torch\* 8.00 KiB", shared_memory_folder(tmp_path).text)


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("unshare") is None, reason="needs root and unshare")
def test_a_mount_whose_name_is_no_text_does_not_disturb(tmp_path: Path) -> None:
    folder = os.fsencode(tmp_path) + b"/a\xff\xe6\xc2\x85b"
    os.mkdir(folder)
    looks = "from phalanx.doctor.kernel import process_folder; print(process_folder().status)"
    script = 'mount -t tmpfs none "$1" && exec "$2" -c "$3"'
    command = ["unshare", "--mount", "sh", "-c", script, "sh", os.fsdecode(folder), sys.executable, looks]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert result.stdout == "ok\n", result.stderr
