"""phalanx.testing.ranks(n): ranks to use by hand."""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import torch

import phalanx
from phalanx.errors import OperationTimeoutError, RankFailedError, UsageError
from phalanx.launch.zygote_ranks import ZygoteRanks
from phalanx.testing import ranks
from phalanx.torch_backend.untyped import dist
from tests import leftovers
from tests.interrupts import interrupt_after

_KINDS = ["pool", "process", "thread"]


def _sum_of_ranks(start: float = 0.0) -> tuple[int, float]:
    group = phalanx.connect()
    total = torch.tensor([start + group.rank])
    group.all_reduce(total)
    return group.rank, total.item()


def _pid() -> int:
    return os.getpid()


def _fail_on(rank: int) -> None:
    group = phalanx.connect()
    if group.rank == rank:
        raise KeyError("broken shard")
    group.barrier()


def _die_on(rank: int, how: str) -> None:
    group = phalanx.connect()
    if group.rank == rank:
        os._exit(7) if how == "exit" else os.kill(os.getpid(), signal.SIGKILL)
    group.barrier()


def _make_hang() -> Callable[[], None]:
    """Return a function that is sent as it is: ranks need not import this module, and pytest, within the time."""

    def hang() -> None:
        group = phalanx.connect()
        while group.rank == 1:
            time.sleep(0.01)
        group.barrier()

    return hang


def _meet_and_keep_the_store(num_bytes: int, kept: str = "_kept_store") -> None:
    """Free the store that the call before has kept, once this one's has other contents."""
    dist.init_process_group("phalanx", timeout=timedelta(seconds=20))
    store = dist.distributed_c10d._get_default_store()
    store.set(f"key {dist.get_rank()}", "x" * num_bytes)
    dist.barrier()
    setattr(dist, kept, store)
    gc.collect()
    dist.barrier()
    dist.destroy_process_group()


def _speak() -> None:
    group = phalanx.connect()
    print("out of", group.rank)
    print("err of", group.rank, file=sys.stderr)


@pytest.mark.slow
@pytest.mark.parametrize("kind", _KINDS)
def test_run_returns_the_results_in_rank_order(kind: Any) -> None:
    with ranks(3, kind=kind) as world:
        assert (world.size, world.kind) == (3, kind)
        assert world.run(_sum_of_ranks) == [(0, 3.0), (1, 3.0), (2, 3.0)]
        assert world.run(_sum_of_ranks, start=10.0) == [(0, 33.0), (1, 33.0), (2, 33.0)]
        assert world.run(lambda *args: args, 1, "two") == [(1, "two")] * 3


@pytest.mark.slow
@pytest.mark.parametrize("kind", _KINDS)
def test_an_exception_of_a_rank_comes_with_its_traceback(kind: Any) -> None:
    with ranks(2, kind=kind) as world:
        with pytest.raises((KeyError, RankFailedError), match="broken shard") as caught:
            world.run(_fail_on, 1)
        told = f"{caught.value}\n{caught.value.__cause__}"
        assert "rank 1" in told
        assert "_fail_on" in told
        assert world.run(_sum_of_ranks) == [(0, 1.0), (1, 1.0)]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["pool", "process"])
def test_a_rank_that_died_is_named_and_replaced(kind: Any) -> None:
    with ranks(2, kind=kind) as world:
        with pytest.raises(RankFailedError, match="rank 1 of 2: ended with exit code 7") as caught:
            world.run(_die_on, 1, "exit")
        assert (caught.value.exit_code, caught.value.signal) == (7, None)
        assert "rank 0: waiting in barrier" in str(caught.value.__cause__)
        with pytest.raises(RankFailedError, match="rank 0 of 2: was killed by SIGKILL") as caught:
            world.run(_die_on, 0, "kill")
        assert (caught.value.exit_code, caught.value.signal) == (None, 9)
        assert world.run(_sum_of_ranks) == [(0, 1.0), (1, 1.0)]


@pytest.mark.slow
def test_a_pool_keeps_its_ranks_and_processes_are_fresh() -> None:
    with ranks(2) as pool, ranks(2, kind="process") as fresh, ranks(2, kind="thread") as threads:
        first = pool.run(_pid)
        assert pool.run(_pid) == first
        assert len({*fresh.run(_pid), *fresh.run(_pid), *first, os.getpid()}) == 7
        assert threads.run(_pid) == [os.getpid()] * 2
        with pytest.raises(KeyError):
            pool.run(_fail_on, 0)
        assert not {*pool.run(_pid)} & {*first}
        pool.close()
        assert len(pool.run(_pid)) == 2


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["pool", "process"])
def test_output_is_shown_with_the_rank_in_front(kind: Any, capsys: pytest.CaptureFixture[str]) -> None:
    with ranks(2, kind=kind) as world:
        world.run(_speak)
        world.run(_speak)
    captured = capsys.readouterr()
    assert captured.out.splitlines() == ["[rank 0] out of 0", "[rank 1] out of 1"] * 2
    assert captured.err.splitlines() == ["[rank 0] err of 0", "[rank 1] err of 1"] * 2


def _train_on_gpus() -> tuple[int, tuple[int, int], int, float]:
    """Use the GPU of this rank, and leave it in use."""
    before = torch.cuda.current_device()
    torch.cuda.set_device(phalanx.connect().rank)
    dist.init_process_group("nccl")
    tensor = torch.ones(1 << 10, device="cuda")
    dist.all_reduce(tensor)
    return before, torch.cuda.get_device_capability(), torch.cuda.device_count(), tensor[0].item()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["pool", "process"])
def test_ranks_with_virtual_gpus_start_every_run_on_the_first(kind: Any) -> None:
    with ranks(2, kind=kind, gpus="virtual:3:h100") as on_gpus, ranks(2, kind=kind) as without:
        for _ in range(2):
            assert on_gpus.run(_train_on_gpus) == [(0, (9, 0), 3, 2.0)] * 2
            assert without.run(torch.cuda.device_count) == [torch.cuda.device_count()] * 2


@pytest.mark.slow
def test_a_race_on_virtual_gpus_is_found() -> None:
    def forget_to_wait() -> None:
        tensor = torch.zeros(4, device="cuda")
        with torch.cuda.stream(torch.cuda.Stream()):
            tensor.add_(1)

    with ranks(1, gpus="virtual", races="raise") as world, pytest.raises(phalanx.RaceError):
        world.run(forget_to_wait)


@pytest.mark.slow
def test_a_store_that_is_freed_late_does_not_disturb_a_later_process_group() -> None:
    with ranks(2, timeout_s=30) as world:
        for num_bytes in (300, 2000, 7, 1000):
            world.run(_meet_and_keep_the_store, num_bytes)


@pytest.mark.slow
def test_a_run_that_takes_too_long_is_ended() -> None:
    with ranks(2, timeout_s=1) as world:
        with pytest.raises(OperationTimeoutError, match=r"rank 1.*: not done after 1 s") as caught:
            world.run(_make_hang())
        assert "in hang" in str(caught.value.__cause__)
        assert world.run(abs, -1) == [1, 1]


def _fail_to_clean_up(rank: int) -> None:
    dist.init_process_group("phalanx", timeout=timedelta(seconds=20))
    if dist.get_rank() == rank:
        dist.destroy_process_group = None  # so its next call raises


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["pool", "process"])
def test_a_rank_that_fails_after_the_function_is_named_and_replaced(kind: Any) -> None:
    with ranks(2, kind=kind, timeout_s=30) as world:
        with pytest.raises(RankFailedError, match="rank 1 of 2: ended with exit code 1"):
            world.run(_fail_to_clean_up, 1)
        assert world.run(_sum_of_ranks) == [(0, 1.0), (1, 1.0)]


@pytest.mark.slow
@pytest.mark.parametrize("call", ["start", "await_start", "read"])
def test_ctrl_c_while_the_ranks_of_a_world_start_ends_them(monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    with ranks(2) as world:
        world.run(_pid)
        world.close()
        before = leftovers.open_descriptors()
        with monkeypatch.context() as patch:
            interrupt_after(patch, ZygoteRanks, call)
            with pytest.raises(KeyboardInterrupt):
                world.run(_pid)
        assert len(leftovers.open_descriptors()) == len(before)
        assert leftovers.wait_until(lambda: not leftovers.rank_processes())
        assert world.run(abs, -1) == [1, 1]


@pytest.mark.slow
def test_nothing_is_left_when_a_world_is_closed() -> None:
    with ranks(3) as world:
        pids = world.run(_pid)
    assert leftovers.wait_until(lambda: not any(os.path.exists(f"/proc/{pid}") for pid in pids))


@pytest.mark.slow
@pytest.mark.parametrize("kind", _KINDS)
def test_a_world_can_be_used_from_a_process_with_threads(kind: Any) -> None:
    done = threading.Event()
    lock = threading.Lock()
    busy = [threading.Thread(target=_take_again_and_again, args=(lock, done)) for _ in range(3)]
    for thread in busy:
        thread.start()
    results: list[Any] = []
    try:
        with ranks(2, kind=kind) as world:
            user = threading.Thread(target=lambda: results.extend(world.run(_sum_of_ranks)))
            user.start()
            user.join(30)
            results += world.run(_sum_of_ranks)
    finally:
        done.set()
        for thread in busy:
            thread.join()
    assert results == [(0, 1.0), (1, 1.0)] * 2


def _take_again_and_again(lock: threading.Lock, done: threading.Event) -> None:
    while not done.wait(0.001):
        with lock:
            torch.ones(10).sum()


@pytest.mark.parametrize(
    ("arguments", "options", "told"),
    [
        ((0,), {}, r"ranks\(0\): give a whole number from 1 to 1024"),
        (("four",), {}, r"ranks\('four'\): give a whole number"),
        ((True,), {}, r"ranks\(True\): give a whole number"),
        ((2,), {"kind": "fiber"}, 'kind is \'fiber\'; give "pool", "process" or "thread"'),
        ((2,), {"timeout_s": -1}, "timeout_s is -1; give a positive number of seconds"),
        ((2,), {"timeout_s": float("nan")}, "timeout_s is nan; give a positive number"),
        ((2,), {"timeout_s": "soon"}, "timeout_s is 'soon'; give a positive number"),
        ((2,), {"gpus": "real"}, "ranks: gpus is 'real'; give \"virtual\" for as many as ranks"),
        ((2,), {"gpus": "virtual:2:h1000"}, "ranks: the model in gpus= is 'h1000'; give one of plain"),
        ((2,), {"races": "warn"}, 'ranks: races is for virtual GPUs; add gpus="virtual"'),
        ((2,), {"gpus": "virtual", "races": "loud"}, "ranks: races is 'loud'; give one of off, warn, raise"),
        ((2,), {"gpus": "virtual", "kind": "thread"}, 'ranks of kind "thread" share the virtual devices of this'),
    ],
    ids=[
        "zero",
        "text",
        "bool",
        "kind",
        "negative",
        "nan",
        "timeout text",
        "gpus",
        "model",
        "races",
        "mode",
        "threads",
    ],
)
def test_bad_arguments_of_a_world_are_refused(arguments: Any, options: Any, told: str) -> None:
    with pytest.raises(UsageError, match=told):
        ranks(*arguments, **options)


@pytest.mark.slow
def test_what_cannot_be_sent_is_refused() -> None:
    steps = (number for number in range(3))
    with ranks(2) as world:
        with pytest.raises(UsageError, match=r"can't be sent to the ranks.*generator"):
            world.run(next, steps)
        with pytest.raises(Exception, match="generator"):
            world.run(lambda: (number for number in range(3)))
        assert world.run(abs, -1) == [1, 1]
