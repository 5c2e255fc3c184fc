"""Ranks killed at random moments: every death is reported, nothing hangs, nothing is left behind."""

from __future__ import annotations

import os
import random
import re
import time
from pathlib import Path

import pytest

from tests import leftovers
from tests.testing.inner_runs import InnerRuns

_NUM_TESTS = 20


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["process", "pool"])
def test_ranks_killed_at_random_moments_are_all_reported(inner: InnerRuns, kind: str) -> None:
    seed = random.randrange(1 << 30)
    memory_before = set(os.listdir("/dev/shm"))
    start = time.monotonic()
    result = inner.run(
        f"""
        import random
        from phalanx.testing import assert_same_on_ranks

        def operate(group, rank, choice):
            mine = torch.ones(1 + 1000 * choice.randrange(50))
            match choice.randrange(4):
                case 0: group.all_reduce(mine)
                case 1: group.broadcast(mine, root=choice.randrange(group.size))
                case 2: group.barrier()
                case 3: assert_same_on_ranks(mine)

        @pytest.mark.ranks(3, timeout=600)
        @pytest.mark.parametrize("number", range({_NUM_TESTS}))
        def test_kill(group, rank, number):
            note(os.getpid())
            choice = random.Random({seed} + number)
            victim, last = choice.randrange(3), choice.randrange(20)
            from_within, delay_s = choice.random() < 0.5, choice.random() / 100
            for operation in range(last):
                operate(group, rank, choice)
            if rank == victim and from_within:
                os.kill(os.getpid(), signal.SIGKILL)
            if rank == victim:  # in the middle of something
                threading.Timer(delay_s, os.kill, (os.getpid(), signal.SIGKILL)).start()
            while True:
                operate(group, rank, choice)

        @pytest.mark.ranks(3)
        def test_after(group): group.barrier()
        """,
        f"--ranks-kind={kind}",
    )
    print(f"seed {seed}")
    assert time.monotonic() - start < 500
    result.assert_outcomes(failed=_NUM_TESTS, passed=1)
    told = [line for line in result.outlines if re.match(r"rank \d of 3: was killed by SIGKILL \(signal 9\)", line)]
    assert len(told) == _NUM_TESTS
    pids = set(inner.notes())
    assert leftovers.wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids))
    assert not {name for name in os.listdir("/dev/shm") if "phalanx" in name} - memory_before


@pytest.mark.slow
def test_nothing_is_left_behind_when_pytest_itself_is_killed(inner: InnerRuns) -> None:
    result = inner.run_apart(
        """
        @pytest.mark.ranks(2, kind="pool")
        def test_warm(rank): note(os.getpid())

        @pytest.mark.ranks(3)
        def test_kill_pytest(group, rank):
            note(os.getpid())
            group.barrier()
            if rank == 0: os.kill(os.getppid(), signal.SIGKILL)
            while True: time.sleep(0.01)
        """
    )
    assert result.ret == -9
    pids = inner.notes()
    assert len(pids) == 5
    assert leftovers.wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids))
    assert not leftovers.named_memory()
