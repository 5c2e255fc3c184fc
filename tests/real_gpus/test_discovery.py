"""Real GPUs as they are found without CUDA."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from phalanx.real_gpus.discovery import Gpu, find_gpus, has_opened_cuda, is_exclusive, memory_of, visible_gpus
from tests.nvml import build_nvml

_TWO = [Gpu("GPU-aa01", 8 << 30), Gpu("GPU-bb02", 8 << 30)]


@pytest.mark.slow
def test_the_driver_is_asked_for_gpus_and_their_memory(tmp_path: Path) -> None:
    library = build_nvml(tmp_path, 80, 0)
    assert find_gpus(str(library)) == [Gpu("GPU-00000001-aaaa-bbbb", 80 << 30), Gpu("GPU-00000002-aaaa-bbbb", 0)]


def test_device_files_are_counted_where_the_driver_does_not_answer(tmp_path: Path) -> None:
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm", "null"):
        (tmp_path / name).touch()
    assert find_gpus("nowhere.so", tmp_path) == [Gpu(), Gpu()]
    assert find_gpus("nowhere.so", tmp_path / "none") == []


@pytest.mark.parametrize(
    ("text", "visible"),
    [
        (None, ["0", "1"]),
        ("", []),
        ("-1", []),
        ("1", ["1"]),
        ("1, 0", ["1", "0"]),
        ("1,7,0", ["1"]),
        ("0,0", []),
        ("GPU-bb", ["GPU-bb"]),
        ("GPU-cc", []),
        ("GPU-", []),  # begins the UUIDs of both
        ("GPU-bb,GPU-bb02", []),
        ("GPU-bb,0", ["GPU-bb", "0"]),
        ("MIG-1f", ["MIG-1f"]),
        ("all", []),
    ],
)
def test_what_cuda_shows_is_read_as_cuda_reads_it(text: str | None, visible: list[str]) -> None:
    assert visible_gpus(_TWO, {} if text is None else {"CUDA_VISIBLE_DEVICES": text}) == visible


def test_memory_is_known_by_uuid_or_when_all_gpus_are_alike() -> None:
    assert memory_of("1", _TWO) == 8 << 30
    mixed = [Gpu("GPU-aa01", 8 << 30), Gpu("GPU-bb02", 24 << 30)]
    assert [memory_of(name, mixed) for name in ("0", "GPU-bb", "MIG-1f", "GPU-cc")] == [0, 24 << 30, 0, 0]


@pytest.mark.slow
def test_gpus_for_one_process_are_known(tmp_path: Path) -> None:
    assert [gpu.is_exclusive for gpu in find_gpus(str(build_nvml(tmp_path, 80, mode=3)))] == [True]
    mixed = [Gpu("GPU-aa01", is_exclusive=True), Gpu("GPU-bb02")]
    told = {name: is_exclusive(name, mixed) for name in ("GPU-aa", "GPU-bb", "0", "1", "GPU-cc")}
    assert told == {"GPU-aa": True, "GPU-bb": False, "0": False, "1": False, "GPU-cc": False}


def test_a_process_that_has_opened_cuda_is_known_by_its_files(tmp_path: Path) -> None:
    (tmp_path / "3").symlink_to("/dev/nvidiactl")
    assert not has_opened_cuda(tmp_path)
    (tmp_path / "4").symlink_to("/dev/nvidia-uvm")
    assert has_opened_cuda(tmp_path)


@pytest.mark.slow
def test_looking_for_gpus_leaves_cuda_closed() -> None:
    code = "import sys; from phalanx.real_gpus.discovery import *; find_gpus(); sys.exit(has_opened_cuda())"
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0
