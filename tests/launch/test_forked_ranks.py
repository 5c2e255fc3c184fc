from __future__ import annotations

import io
import os
import signal
import sys

import pytest

from phalanx.launch.forked_ranks import ChildProcess, ForkedRanks, fork_rank
from phalanx.launch.rank import Rank
from phalanx.launch.waiting import is_readable


def _pass() -> None:
    pass


def _leave() -> None:
    sys.exit(7)


def _fail() -> None:
    sys.stderr = io.StringIO()
    raise ValueError


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.slow
def test_it_is_heard_how_every_forked_rank_ends() -> None:
    starter = ForkedRanks()
    ranks = [Rank(number) for number in range(4)]
    try:
        for rank, main in zip(ranks, (_pass, _leave, _fail, _die), strict=True):
            pid = fork_rank(main)
            starter.add(rank, pid, ChildProcess(pid))
        ended: list[Rank] = []
        while not starter.is_over:
            assert is_readable(starter.fileno(), 20)
            ended += starter.read()
    finally:
        starter.close()
        for rank in ranks:
            rank.release()
    assert sorted(rank.number for rank in ended) == [0, 1, 2, 3]
    assert [rank.status for rank in ranks] == [0, 7, 1, 256 + signal.SIGKILL]
    assert not any(rank.is_running for rank in ranks)


def test_a_fork_that_fails_leaves_signals_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> int:
        raise BlockingIOError(11, "no more processes")

    monkeypatch.setattr(os, "fork", refuse)
    with pytest.raises(BlockingIOError):
        fork_rank(_pass)
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, [])
