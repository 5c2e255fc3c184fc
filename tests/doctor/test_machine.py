"""Cores, memory and /dev/shm, in words."""

from __future__ import annotations

import os
import re
from pathlib import Path

from phalanx.doctor.control_groups import ControlGroups
from phalanx.doctor.machine import cores, memory, shared_memory_folder


class _Limited(ControlGroups):
    def __init__(self, *, cores: float | None = None, memory_bytes: int | None = None) -> None:
        self._cores, self._memory_bytes = cores, memory_bytes

    def cores(self) -> float | None:
        return self._cores

    def memory_limit_bytes(self) -> int | None:
        return self._memory_bytes

    def memory_left_bytes(self) -> int | None:
        return self._memory_bytes


def test_cores_are_counted() -> None:
    answer = cores(_Limited())
    assert answer.status == "ok"
    assert answer.text.startswith(f"{len(os.sched_getaffinity(0))} usable of {os.cpu_count()}")


def test_a_quota_below_the_cores_is_a_note() -> None:
    answer = cores(_Limited(cores=0.5))
    assert answer.status == "note"
    assert "the control group grants the time of 0.5" in answer.text
    assert answer.advice == "Use at most 1 ranks, or give the container more than 0.5 cores."


def test_memory_is_named_with_its_limit() -> None:
    assert re.fullmatch(r"[\d.]+ [GTM]iB available of [\d.]+ [GT]iB", memory(_Limited()).text)
    little = memory(_Limited(memory_bytes=100 << 20))
    assert little.status == "note"
    assert little.text.startswith("100 MiB available of ")
    assert little.text.endswith("; the control group allows 100 MiB")
    assert little.advice.startswith("Free memory or raise its limit")
    assert memory(_Limited(memory_bytes=1 << 20)).status == "problem"


def test_no_dev_shm_does_not_keep_ranks_from_running(tmp_path: Path) -> None:
    answer = shared_memory_folder(tmp_path / "shm")
    assert answer.status == "note"
    assert answer.text.startswith("not there: phalanx does without it; DataLoader workers")
    assert answer.advice.endswith("if you use DataLoader workers or NCCL.")


def test_what_lies_in_dev_shm_is_named(tmp_path: Path) -> None:
    for name in ("nccl-aaa", "nccl-bbb", "torch_123_0", ".hidden"):
        (tmp_path / name).write_bytes(b"x" * 8192)
    assert re.search(r"nccl\* 16.0 KiB, .*torch\* 8.0 KiB", shared_memory_folder(tmp_path).text)
