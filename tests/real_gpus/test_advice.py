"""A program that wants a GPU where there is none hears of virtual ones, in one line."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import phalanx
from phalanx.real_gpus.advice import advice, advise
from phalanx.torch_backend.autoload import advising

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
_NCCL = "import torch.distributed as dist\ndist.init_process_group('nccl')\n"
_DEVICE = "import torch\ntorch.cuda.set_device(0)\n"
_CAUGHT = """
import torch.distributed as dist
try:
    dist.init_process_group("nccl")
except RuntimeError as error:
    assert type(error) in (RuntimeError, ValueError, dist.DistBackendError), type(error)
    print(str(error).count("virtual"), len(error.__notes__))
"""


def _run(command: list[str], program: str, folder: Path) -> subprocess.CompletedProcess[str]:
    path = folder / "program.py"
    path.write_text(program)
    alone = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    return subprocess.run(
        [sys.executable, *command, str(path)],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        env={**os.environ, **alone},
    )


@pytest.mark.slow
@pytest.mark.parametrize("program", [_NCCL, _DEVICE], ids=["nccl", "set_device"])
def test_under_phalanx_run_the_traceback_ends_with_the_advice(program: str, tmp_path: Path) -> None:
    done = _run(["-m", "phalanx", "run", "-n", "3"], program, tmp_path)
    assert done.returncode == 1
    assert done.stderr.count("--virtual-gpus") == 1
    assert "start with phalanx run --virtual-gpus 3, or set PHALANX_VIRTUAL_GPUS=3" in done.stderr


@pytest.mark.parametrize(
    "way",
    [
        "dist.init_process_group('nccl', device_id=torch.device('cuda:0'))",
        "dist.init_process_group('nccl', device_id=0)",
        "dist.ProcessGroupNCCL.Options()",
        "torch.accelerator.set_device_index(0)",
        "torch.empty(1, device=0)",
        "torch.ones(1, device='cuda')",
        "torch.ones(1, pin_memory=True)",
        "torch.cuda.Stream()",
        "torch.cuda.Event()",
        "torch.Stream('cuda')",
        "torch.cuda.device(0).__enter__()",
        "torch.Generator('cuda')",
    ],
)
def test_every_way_to_ask_for_a_gpu_is_recognised(way: str) -> None:
    with pytest.raises(Exception) as caught:
        exec(way)
    advise(caught.value, 2)
    assert caught.value.__notes__ == [advice(2)]


@pytest.mark.slow
def test_without_a_launcher_init_process_group_has_it_too(tmp_path: Path) -> None:
    done = _run([], _NCCL, tmp_path)
    assert done.stderr.splitlines()[-1] == advice(1)


@pytest.mark.slow
def test_a_program_that_catches_the_error_gets_the_same_one(tmp_path: Path) -> None:
    assert _run([], _CAUGHT, tmp_path).stdout.split() == ["0", "1"]


def test_other_errors_are_left_alone_and_none_is_advised_twice() -> None:
    other, mine = ValueError("no such file"), RuntimeError("Distributed package doesn't have NCCL built in")

    def fail(group_size: int, error: Exception) -> None:
        raise error

    for error in (other, mine, mine):
        with pytest.raises(type(error)):
            advising(fail)(2, error)
    advise(mine, 2)
    assert not hasattr(other, "__notes__")
    assert mine.__notes__ == [advice(2)]


class _Mute(RuntimeError):
    def __str__(self) -> str:
        raise ValueError("no text")


def test_an_error_without_a_text_stays_the_error() -> None:
    def fail(group_size: int) -> None:
        raise _Mute

    with pytest.raises(_Mute):
        advising(fail)(2)


def test_no_more_virtual_gpus_are_advised_than_there_can_be() -> None:
    assert advice(100).endswith("PHALANX_VIRTUAL_GPUS=64")


def _start_nccl() -> None:
    dist.init_process_group("nccl")


@pytest.mark.slow
def test_ranks_of_spawn_are_advised_in_words_of_spawn() -> None:
    with pytest.raises(RuntimeError) as caught:
        phalanx.spawn(_start_nccl, ranks=2, virtual_gpus=0)
    (line,) = [note for note in caught.value.__notes__ if "virtual" in note]
    assert line == (
        "  do       torch can use no GPU here; to give each rank a virtual one, call spawn with virtual_gpus=2"
    )


@pytest.mark.slow
def test_a_test_on_ranks_is_advised_once_and_in_words_of_the_marker(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(
        "import pytest, torch.distributed as dist\n"
        "@pytest.mark.ranks(2)\n"
        "def test_it():\n"
        "    dist.init_process_group('nccl')\n"
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_it.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 1
    assert done.stdout.count("torch can use no GPU here") == 1, done.stdout
    assert 'to give each rank a virtual one, write gpus="virtual" in the marker ranks' in done.stdout
