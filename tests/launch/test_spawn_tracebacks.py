"""What a user sees who does not catch what spawn() raises."""

from __future__ import annotations

import gc
import linecache
import os
import re
import signal
import time
import traceback
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import phalanx
from phalanx.launch.outcome import SpawnedRank, raise_first
from phalanx.launch.rank_process import describe_failure
from tests.leftovers import group_memory, wait_until
from tests.run_ranks import Kind, every_kind, run_ranks


def _shown(kind: Kind, ranks: int, program: Callable[[], object]) -> str:
    try:
        run_ranks(kind, ranks, program)
    except Exception as error:
        return "".join(traceback.format_exception(error))
    raise AssertionError


def _fail() -> None:
    if phalanx.connect().rank == 1:
        raise ValueError("bad batch")
    phalanx.connect()


@every_kind
def test_of_phalanx_nothing_is_shown(kind: Kind) -> None:
    shown = _shown(kind, 2, _fail)
    assert 'raise ValueError("bad batch")' in shown
    assert "/src/phalanx/" not in shown


def test_the_callers_own_mistake_shows_nothing_of_phalanx_either() -> None:
    with pytest.raises(phalanx.UsageError) as caught:
        phalanx.spawn(_fail, ranks=0)
    assert [str(entry.path) for entry in caught.traceback] == [__file__]


def _interrupt(caller: int) -> None:
    if phalanx.connect().rank == 1:
        os.kill(caller, signal.SIGINT)
    while True:
        time.sleep(0.01)


@every_kind
def test_an_interrupted_call_says_where_the_ranks_were(kind: Kind) -> None:
    for _ in range(5):  # on a busy machine, a rank may not answer in time
        with pytest.raises(KeyboardInterrupt) as caught:
            phalanx.spawn(_interrupt, ranks=2, kind=kind, args=[os.getpid()])
        assert [str(entry.path) for entry in caught.traceback] == [__file__]
        (note,) = caught.value.__notes__
        assert note.startswith("spawn: interrupted; of 2 ranks these were not done: 0, 1")
        del caught  # its traceback holds what threads have left
        assert wait_until(lambda: gc.collect() >= 0 and not group_memory(), 60)
        if re.search(r"\n  ranks? .*1 at launch/test_spawn_tracebacks.py:\d+ in _interrupt", note):
            return
    pytest.fail(note)


def test_what_phalanx_says_to_a_rank_comes_without_calls_and_once() -> None:
    ranks = [SpawnedRank(number) for number in range(3)]
    for rank in ranks:
        error = phalanx.UsageError("no compiler\n  do       install one")
        rank.report = describe_failure(error)  # as if it were raised where the rank is set up
        rank.fail()
    with pytest.raises(phalanx.UsageError) as caught:
        raise_first(ranks)
    assert caught.value.__cause__ is None
    assert caught.value.__notes__ == ["raised on rank 0 of 3\nranks 1-2 failed in the same way"]


def test_lines_that_only_the_caller_has_are_shown() -> None:
    name = "/tmp/ipykernel_1/cell.py"
    source = "def fail():\n    raise ValueError('no loss')\n"
    space: dict[str, Any] = {}
    exec(compile(source, name, "exec"), space)
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)  # as IPython does
    try:
        with pytest.raises(ValueError, match="no loss") as caught:
            phalanx.spawn(space["fail"], ranks=1)
    finally:
        del linecache.cache[name]
    assert f"  File \"{name}\", line 2, in fail\n    raise ValueError('no loss')\n" in str(caught.value.__cause__)


@every_kind
def test_everything_is_shown_on_request(kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PHALANX_FULL_TRACE", "1")
    assert "/src/phalanx/launch/processes.py" in _shown(kind, 2, _fail) or kind == "thread"
    assert "/src/phalanx/launch/threads.py" in _shown(kind, 2, _fail) or kind == "process"


def test_calls_inside_torch_are_folded() -> None:
    def program() -> None:
        dist.init_process_group("phalanx")
        dist.all_reduce(torch.ones(3 if dist.get_rank() == 2 else 4))

    shown = _shown("process", 4, program)
    assert "rank 2 of 4:\nTraceback (most recent call last):\n" in shown
    assert "calls inside phalanx and torch (PHALANX_FULL_TRACE=1 shows them)\n" in shown
    assert "distributed_c10d.py" not in shown
    assert "here     rank 2 of 4 called all_reduce sum float32 (3,)" in shown
    assert "differs  ranks 0-1, 3 called all_reduce sum float32 (4,)" in shown


def test_a_mismatch_in_ddp_raises_the_odd_ranks_error() -> None:
    def program() -> None:
        dist.init_process_group("phalanx")
        model = DistributedDataParallel(torch.nn.Linear(4, 2))
        loss = model(torch.ones(2, 4)).sum()
        dist.barrier()
        if dist.get_rank() == 3:
            dist.broadcast(torch.ones(3), 0)
        loss.backward()

    shown = _shown("process", 4, program)
    assert "MismatchError: broadcast #" in shown
    assert "here     rank 3 of 4 called broadcast root 0 float32 (3,)" in shown
    assert "Got the following error" not in shown


def test_an_error_in_ddp_is_raised_as_it_was() -> None:
    def program() -> None:
        dist.init_process_group("phalanx")
        model = DistributedDataParallel(torch.nn.Linear(4, 2))
        loss = model(torch.ones(2, 4)).sum()
        if dist.get_rank() != 1:
            loss.backward()

    shown = _shown("process", 2, program)
    assert "phalanx.errors.PeerLeftError: all_reduce #" in shown
    assert "raised on rank 0 of 2" in shown
    assert "\nAt:" not in shown


def test_a_killed_rank_comes_with_advice() -> None:
    def program() -> None:
        if phalanx.connect().rank == 3:
            os.kill(os.getpid(), signal.SIGKILL)

    shown = _shown("process", 8, program)
    assert "RankFailedError: rank 3 of 8 was killed by SIGKILL (signal 9)\n  do       find out who killed it" in shown


@every_kind
def test_an_error_of_phalanx_itself_keeps_its_traceback(kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise phalanx.InternalError("a bug")

    for name in ("run_processes", "run_threads"):
        monkeypatch.setattr(f"phalanx.launch.spawn.{name}", fail)
    assert "raise phalanx.InternalError" in _shown(kind, 2, _fail)
