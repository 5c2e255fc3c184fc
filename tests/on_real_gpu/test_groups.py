"""Plain groups whose ranks share a real GPU: ranks that die, memory that comes and goes, and what can't be done."""

from __future__ import annotations

import ctypes
import os
import signal
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import phalanx
from phalanx import Group
from tests.checks import leave_note, raised
from tests.on_real_gpu.gpu_ranks import needs_gpu, on_gpu
from tests.on_real_gpu.in_fork import in_fork
from tests.run_ranks import read_notes, run_ranks

pytestmark = pytest.mark.slow

_MIB = 1 << 20


def _is_all(tensor: torch.Tensor, value: float) -> bool:
    return bool((tensor == value).all())


def _lose_a_rank(folder: Path, victim: int, count: int) -> None:
    group = phalanx.connect()
    value = torch.zeros(count, device="cuda")
    group.all_reduce(value)
    if group.rank == victim:
        for _ in range(20):
            group.all_reduce(value)
        leave_note(folder, victim, time.monotonic())
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        while True:
            group.all_reduce(value)
    except phalanx.PhalanxError as error:
        text, heard_at = str(error), time.monotonic()
    survivors = group.shrink(timeout_s=20)
    for _ in range(20):
        value.fill_(1.0)
        survivors.all_reduce(value)
        assert _is_all(value, survivors.size)
    leave_note(folder, group.rank, (text, heard_at, survivors.size))


@needs_gpu
@pytest.mark.parametrize("count", [4, 1 << 22])
@pytest.mark.parametrize("victim", [0, 2], ids=["leader", "follower"])
def test_a_killed_rank_is_named_and_the_others_go_on_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, victim: int, count: int
) -> None:
    monkeypatch.setenv("PHALANX_GRACE_S", "20")  # survivors end by themselves
    with pytest.raises(phalanx.RankFailedError, match=f"rank {victim} of 4 was killed by SIGKILL"):
        run_ranks("process", 4, _lose_a_rank, tmp_path, victim, count)
    told = read_notes(tmp_path, range(4))
    for rank in {0, 1, 2, 3} - {victim}:
        text, heard_at, num_survivors = told[rank]
        assert f"rank {victim}" in text.splitlines()[0]
        assert heard_at - told[victim] < 5
        assert num_survivors == 3


def _run_out_of_memory(folder: Path) -> None:
    group = phalanx.connect()
    value = torch.ones(1000, device="cuda")
    group.all_reduce(value)
    if group.rank == 2:
        leave_note(folder, 2, time.monotonic())
        torch.empty(1 << 50, dtype=torch.uint8, device="cuda")
    try:
        group.all_reduce(value)
    except phalanx.PhalanxError as error:
        leave_note(folder, group.rank, (str(error), time.monotonic()))


@needs_gpu
def test_the_others_learn_that_a_rank_ran_out_of_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PHALANX_GRACE_S", "20")
    with pytest.raises(torch.OutOfMemoryError) as failure:
        run_ranks("process", 4, _run_out_of_memory, tmp_path)
    assert failure.value.__notes__ == ["raised on rank 2 of 4"]
    told = read_notes(tmp_path, range(4))
    for rank in (0, 1, 3):
        text, heard_at = told[rank]
        assert "rank 2" in text.splitlines()[0]
        assert heard_at - told[2] < 5


@on_gpu(4, kind="process")
def test_expandable_segments_go_through_the_host_with_one_warning(
    device: torch.device, group: Group, rank: int, caplog: pytest.LogCaptureFixture
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # newer torch has another name for it
        torch.cuda.memory._set_allocator_settings("expandable_segments:True")
    for count in (4, 1000, 1 << 20):
        value = torch.full((count,), rank + 1.0, device=device)
        group.all_reduce(value)
        assert _is_all(value, 10.0)
        output = torch.empty(4 * count, device=device)
        group.all_gather_single(output, torch.full((count,), float(rank), device=device))
        assert output[::count].tolist() == [0.0, 1.0, 2.0, 3.0]
    staged = [text for text in caplog.messages if "go through the host, which is slow" in text]
    assert len(staged) == 1
    assert "expandable segments" in staged[0]


@on_gpu(4)
def test_streams_that_wait_for_each_other_unasked_do_so_in_a_collective(device: torch.device, group: Group) -> None:
    value = torch.zeros(1 << 18, device=device)
    driver, handle = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p()
    assert driver.cuStreamCreate(ctypes.byref(handle), 0) == 0  # 0: blocking, as some libraries' streams are
    blocking = torch.cuda.ExternalStream(handle.value, device=device)
    default = torch.cuda.default_stream(device)
    for first, second in ((default, blocking), (blocking, default)) * 5:
        with torch.cuda.stream(first):
            value.zero_()
            torch.cuda._sleep(10_000_000)
            value.fill_(1.0)
        with torch.cuda.stream(second):
            group.all_reduce(value)
        torch.cuda.synchronize(device)
        assert _is_all(value, group.size)


@on_gpu(4)
def test_a_captured_stream_is_refused_and_the_group_stays_as_it_was(
    device: torch.device, group: Group, rank: int
) -> None:
    value = torch.ones(1000, device=device)
    group.all_reduce(value)
    torch.cuda.synchronize()
    with torch.cuda.graph(torch.cuda.CUDAGraph()):
        value.add_(1)
        with pytest.raises(phalanx.UsageError, match="captured into a CUDA graph"):
            group.all_reduce(value)
    value.fill_(rank + 1.0)
    group.all_reduce(value)
    assert _is_all(value, 10.0)


@on_gpu(4)
def test_memory_that_is_given_back_is_not_held_by_the_leader(device: torch.device, group: Group, rank: int) -> None:
    def go(round_number: int) -> None:
        count = (24 + 8 * (round_number % 7)) * _MIB // 4  # from 20 MiB on torch asks the driver for each
        value = torch.full((count,), rank + float(round_number), device=device)
        group.all_reduce(value)
        assert _is_all(value, 6.0 + 4 * round_number)
        del value
        torch.cuda.empty_cache()

    def free_bytes() -> int:
        torch.cuda.synchronize()
        group.barrier()
        free = torch.cuda.mem_get_info(device)[0]
        group.barrier()
        return free

    go(0)
    before = free_bytes()
    for round_number in range(1, 50):  # 2.3 GiB of each rank, 7 GiB of all but the leader
        go(round_number)
    assert before - free_bytes() < 2 << 30


def _in_thread() -> bool:
    group = phalanx.connect()
    for count in (1, 1000, 1 << 20):
        for round_number in range(10):
            with torch.cuda.stream(torch.cuda.Stream()):
                value = torch.full((count,), group.rank + float(round_number), device="cuda")
                group.all_reduce(value)
                assert _is_all(value, 6.0 + 4 * round_number)
                output = torch.empty(4 * count, device="cuda")
                group.all_gather_single(output, value + group.rank)
                assert [float(one) - float(value[0]) for one in output[::count].tolist()] == [0.0, 1.0, 2.0, 3.0]
    work = group.all_reduce(value.fill_(1.0), async_op=True)
    assert work is not None
    work.wait()
    return _is_all(value, 4.0)


def _in_threads() -> list[Any]:
    return phalanx.spawn(_in_thread, ranks=4, kind="thread", timeout_s=60)


@needs_gpu
def test_ranks_that_are_threads_need_no_hand_over() -> None:
    # In a process of their own: one that has used CUDA can't be forked for the ranks of other tests.
    assert run_ranks("process", 1, _in_threads) == [[True] * 4]


def _reduce_alone(value: torch.Tensor) -> str:
    return str(raised(phalanx.UsageError, phalanx.connect().all_reduce, value))


@on_gpu(2, kind="process")
def test_a_process_that_is_forked_after_cuda_was_used_is_told_so(device: torch.device, group: Group, rank: int) -> None:
    value = torch.full((1000,), rank + 1.0, device=device)
    group.all_reduce(value)
    calls: list[Callable[[], Any]] = [
        lambda: str(raised(phalanx.ClosedError, group.all_reduce, value)),
        lambda: phalanx.spawn(_reduce_alone, ranks=1, kind="thread", args=(value,), timeout_s=20)[0],
    ]
    with_its_parents_group, with_its_own_group = (in_fork(call) for call in calls)
    assert "this process was forked from the rank" in with_its_parents_group
    assert "CUDA was used before this process was forked" in with_its_own_group
    group.all_reduce(value)
    assert _is_all(value, 6.0)
