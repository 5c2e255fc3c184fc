"""A collective that fails is told to somebody, whichever way the program waits for it."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
import torch

import phalanx
from phalanx.errors import MismatchError
from phalanx.torch_backend.untyped import dist


def _fail(device: torch.device, rank: int) -> phalanx.Work:
    """Start a collective on which the ranks disagree."""
    work: phalanx.Work = dist.all_reduce(torch.ones(4 + rank, device=device), async_op=True)
    return work


@pytest.mark.ranks(2)
@pytest.mark.parametrize(
    "synchronize", [torch.cuda.synchronize, torch.accelerator.synchronize], ids=["cuda", "accelerator"]
)
def test_synchronizing_tells(nccl: torch.device, rank: int, synchronize: Callable[[], None]) -> None:
    _fail(nccl, rank)
    with pytest.raises(dist.DistBackendError, match="ranks disagree on shape") as raised:
        synchronize()
    assert isinstance(raised.value, MismatchError)
    synchronize()  # told once


@pytest.mark.ranks(2)
def test_synchronizing_waits_for_all_and_tells_the_first(nccl: torch.device, rank: int) -> None:
    other = dist.new_group()
    _fail(nccl, rank)
    value = torch.ones(1 << 18, device=nccl)
    dist.all_reduce(value, group=other, async_op=True)
    with pytest.raises(dist.DistBackendError, match="ranks disagree on shape"):
        torch.cuda.synchronize()
    assert float(value[-1]) == 2.0


@pytest.mark.ranks(2)
def test_who_was_told_by_the_work_is_not_told_again(nccl: torch.device, rank: int) -> None:
    work = _fail(nccl, rank)
    with pytest.raises(dist.DistBackendError):
        work.wait()
    torch.cuda.synchronize()
    dist.destroy_process_group()


@pytest.mark.ranks(2)
def test_what_native_code_waited_for_is_told_by_the_next_call(nccl: torch.device, rank: int) -> None:
    from phalanx.virtual_gpus import library

    _fail(nccl, rank)
    library.current().synchronize(rank)  # as C++ does: nothing can be raised there
    with pytest.raises(dist.DistBackendError, match="ranks disagree on shape"):
        dist.all_reduce(torch.ones(1, device=nccl))


@pytest.mark.ranks(2)
def test_ending_the_group_tells(nccl: torch.device, rank: int) -> None:
    _fail(nccl, rank)
    with pytest.raises(dist.DistBackendError, match="ranks disagree on shape"):
        dist.destroy_process_group()
    dist.destroy_process_group()


@pytest.mark.ranks(2)
def test_ending_the_group_does_not_hide_another_exception(
    nccl: torch.device, rank: int, caplog: pytest.LogCaptureFixture
) -> None:
    _fail(nccl, rank)
    try:
        raise KeyError
    except KeyError:
        with caplog.at_level(logging.ERROR, logger="phalanx"):
            dist.destroy_process_group()
    assert "ranks disagree on shape" in caplog.text


@pytest.mark.ranks(2)
def test_a_group_that_is_aborted_says_nothing_more(nccl: torch.device, rank: int) -> None:
    dist.all_reduce(torch.ones(1, device=nccl))
    dist.all_reduce(torch.ones(1, device=nccl), async_op=True) if rank == 0 else None
    dist.group.WORLD.abort()
    torch.cuda.synchronize()


@pytest.mark.ranks(2)
def test_every_thread_that_synchronizes_waits(nccl: torch.device, rank: int) -> None:
    store = dist.distributed_c10d._get_default_store()
    value, seen = torch.ones(16, device=nccl), []

    def synchronize() -> None:
        torch.cuda.set_device(nccl)
        store.add("synchronizing", 1)
        torch.cuda.synchronize()
        seen.append(float(value[0]))

    if rank == 1:
        store.wait(["go"], timedelta(seconds=30))
    work = dist.all_reduce(value, async_op=True)
    threads = [threading.Thread(target=synchronize) for _ in range(3)] if rank == 0 else []
    for thread in threads:
        thread.start()
    if rank == 0:
        while store.add("synchronizing", 0) < 3:
            pass
        store.set("go", "")
    for thread in threads:
        thread.join()
    work.wait()
    assert seen == [2.0] * len(threads)


_UNNOTICED = """
import os, sys, torch, torch.distributed as dist
rank = int(os.environ["RANK"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl")
differs = int(sys.argv[1])
work = dist.all_reduce(torch.ones(4 + differs * rank, device="cuda"), async_op=True)
while not work.is_completed():
    pass
"""


@pytest.mark.slow
@pytest.mark.parametrize("code", [0, 1])
def test_a_failure_that_nobody_noticed_fails_the_program(code: int, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(_UNNOTICED)
    command = [sys.executable, "-m", "phalanx.cli", "run", "-n", "2", "--virtual-gpus", "2", str(program), str(code)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert ended.returncode == code, ended.stderr
    assert ("the program ended without having waited for it" in ended.stderr) == bool(code)
    assert ("ranks disagree on shape" in ended.stderr) == bool(code)
