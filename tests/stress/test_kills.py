"""Ranks killed at random moments: no hang, no process, no memory is left."""

from __future__ import annotations

import gc
import os
import pickle
import random
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

import phalanx
from tests import leftovers
from tests.checks import leave_note
from tests.run_ranks import run_ranks
from tests.stress.amounts import Amount

# A rank that hears of a death only by its timeout fails the test, however long the rest of a busy machine's work takes.
TIMEOUT_S = 60


def _die_after(seconds: float) -> None:
    """The moment is random; nothing is ordered by it."""

    def die() -> None:
        time.sleep(seconds)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=die, daemon=True).start()


def _one_call(group: Any, dice: random.Random, symmetric: torch.Tensor) -> None:
    size = dice.choice([1, 100, 5000, 200_000])
    n, me = group.size, group.rank
    match dice.randrange(10):
        case 0:
            group.all_reduce(torch.ones(size))
        case 1:
            group.broadcast(torch.ones(size), dice.randrange(n))
        case 2:
            group.all_gather_single(torch.ones(n * size), torch.ones(size))
        case 3:
            group.reduce_scatter_single(torch.ones(size), torch.ones(n * size))
        case 4:
            group.all_to_all_single(torch.ones(n * size), torch.ones(n * size))
        case 5:
            group.all_reduce(symmetric)
        case 6:
            for work in [group.all_reduce(torch.ones(size), async_op=True) for _ in range(5)]:
                work.wait()
        case 7:
            work = group.recv(torch.ones(size), (me - 1) % n, async_op=True)
            group.send(torch.ones(size), (me + 1) % n, async_op=True).wait()
            work.wait()
        case 8:
            group.all_gather_object("x" * size)
        case _:
            group.barrier()


def _loop_until_somebody_dies(seed: int, victims: dict[int, float], folder: Path) -> None:
    group = phalanx.connect(timeout_s=TIMEOUT_S)
    part = group.split(range(group.size))
    symmetric = group.empty(30_000)
    dice = random.Random(seed)
    group.barrier()
    if group.rank in victims:
        _die_after(victims[group.rank])
    try:
        while True:
            _one_call(group if dice.random() < 0.7 else part, dice, symmetric)
    except phalanx.PhalanxError as error:
        leave_note(folder, group.rank, (type(error).__name__, str(error)))


def _kill_somebody(seed: int, folder: Path) -> str:
    """Return what went wrong, or nothing."""
    dice = random.Random(seed)
    ranks = dice.choice([2, 2, 3, 3, 4, 4, 5, 6])
    victims = {rank: dice.uniform(0, 0.02) for rank in dice.sample(range(ranks), dice.choice([1, 1, 1, 2]))}
    folder.mkdir()
    try:
        run_ranks("process", ranks, _loop_until_somebody_dies, seed, victims, folder, timeout_s=4 * TIMEOUT_S)
    except phalanx.RankFailedError as error:
        if error.rank not in victims or error.signal != signal.SIGKILL:
            return f"seed {seed}: {error} but the victims were {victims}"
    except BaseException as error:
        return f"seed {seed}: {type(error).__name__}: {error}"
    for rank in set(range(ranks)) - set(victims):
        note = folder / f"{rank}.note"
        heard, text = pickle.loads(note.read_bytes()) if note.exists() else ("nothing", "")
        if heard != "PeerDiedError":
            return f"seed {seed}: {ranks} ranks, victims {victims}: rank {rank} heard {heard}: {text}"
    return ""


@pytest.mark.slow
def test_random_kills_leave_nothing_behind(tmp_path: Path, amount: Amount) -> None:
    run_ranks("process", 1, lambda: None)  # imports torch, where ranks are forked from: no part of what is timed
    assert not _kill_somebody(0, tmp_path / "warm up")
    gc.collect()
    before = len(leftovers.open_descriptors())
    num_kills = amount(quick=100, whole=1000)
    with ThreadPoolExecutor(3) as pool:
        told = pool.map(lambda seed: _kill_somebody(seed, tmp_path / str(seed)), range(1, num_kills + 1))
        problems = [text for text in told if text]
    assert not problems, "\n".join(problems)
    gc.collect()
    assert leftovers.wait_until(lambda: not leftovers.rank_processes()), leftovers.rank_processes()
    assert len(leftovers.open_descriptors()) <= before
    assert not leftovers.group_memory()
    assert not leftovers.named_memory()
    assert run_ranks("process", 2, lambda: phalanx.connect().size) == [2, 2]
