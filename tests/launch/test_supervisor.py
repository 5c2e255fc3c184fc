"""The supervisor of ranks, with processes that are no ranks."""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
import time
from collections.abc import Iterator

import pytest

from phalanx.launch.rank import LocalProcess, Rank
from phalanx.launch.shutdown import after_signal
from phalanx.launch.supervisor import Supervisor
from phalanx.launch.world import open_world
from phalanx.launch.world_watch import WorldWatch


class _Starter:
    """Hears of one process when the test says so."""

    def __init__(self, rank: Rank) -> None:
        self._rank = rank
        self._news, self._tell = socket.socketpair()
        self._process: subprocess.Popen[bytes] | None = None
        self.is_over = False

    def start(self) -> None:
        self._process = subprocess.Popen(["sleep", "60"])
        self._tell.send(b"s")

    def wait(self) -> None:
        assert self._process is not None
        self._process.wait(20)
        self._tell.send(b"e")

    def fileno(self) -> int:
        return self._news.fileno()

    def read(self) -> list[Rank]:
        assert self._process is not None
        if self._news.recv(1) == b"s":
            self._rank.pid = self._process.pid
            self._rank.process = LocalProcess(self._process.pid)
            return []
        self._rank.status = 256 - self._process.returncode
        self.is_over = True
        return [self._rank]

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(20)
        self._rank.release()
        self._news.close()
        self._tell.close()


class _Policy(Supervisor[Rank]):
    """Counts what it is told."""

    ended = 0
    num_late = 0

    def on_end(self, rank: Rank) -> bool:
        self.ended += 1
        return False

    def on_deadline(self) -> None:
        self.num_late += 1
        self.deadline = None


@contextlib.contextmanager
def _supervised() -> Iterator[tuple[_Policy, _Starter]]:
    rank = Rank(0)
    starter = _Starter(rank)
    with open_world(1) as world, contextlib.ExitStack() as closing:
        closing.callback(starter.close)
        supervisor = _Policy([rank], WorldWatch(world), grace_s=60)
        closing.callback(supervisor.watch.close)
        closing.callback(supervisor.loop.close)
        supervisor.listen_to(starter)
        yield supervisor, starter


@pytest.mark.slow
def test_a_signal_that_came_before_the_ranks_were_known_reaches_them() -> None:
    """The launcher may be asked to end while it has not yet read which processes its ranks are."""
    with _supervised() as (supervisor, starter):
        (rank,) = supervisor.ranks
        supervisor.end_ranks(after_signal(signal.SIGTERM))
        assert rank.sent == []
        starter.start()
        supervisor.turn()
        assert rank.sent == [signal.SIGTERM]
        starter.wait()
        while not supervisor.is_over:
            supervisor.turn()
        assert rank.status == 256 + signal.SIGTERM
        assert supervisor.ended == 1


@pytest.mark.slow
def test_a_rank_that_was_told_to_end_has_not_failed() -> None:
    with _supervised() as (supervisor, starter):
        (rank,) = supervisor.ranks
        starter.start()
        supervisor.turn()
        supervisor.end_ranks(after_signal(signal.SIGINT))
        supervisor.fail(rank, "it was interrupted")
        assert rank.failed_at is None
        assert not rank.is_culprit


def test_the_clock_stands_still_while_a_person_debugs() -> None:
    with _supervised() as (supervisor, _):
        supervisor.deadline = 0.0
        supervisor.pause()
        supervisor.turn(until=0.0)
        assert supervisor.num_late == 0
        supervisor.resume()
        supervisor.deadline = 0.0
        supervisor.turn(until=0.0)
        assert supervisor.num_late == 1


@pytest.mark.slow
def test_a_finished_rank_gets_no_signals() -> None:
    with _supervised() as (supervisor, starter):
        (rank,) = supervisor.ranks
        starter.start()
        supervisor.turn()
        rank.is_finished = True
        supervisor.end_ranks([signal.SIGKILL])
        assert rank.sent == []
        assert rank.process is not None
        assert rank.process.is_running()


@pytest.mark.slow
def test_debugging_before_a_failure_does_not_prolong_the_grace_time() -> None:
    with _supervised() as (supervisor, _):
        supervisor.pause()
        time.sleep(0.1)  # somebody debugs
        supervisor.fail(supervisor.ranks[0], "it failed")
        supervisor.resume()
        latest = time.monotonic() + 60
        assert supervisor.shutdown.due_at is not None
        assert supervisor.shutdown.due_at <= latest + 1e-6  # sums of floats round


class _Alarm(BaseException):
    """As pytest-timeout raises it, at any moment."""


@pytest.mark.slow
def test_an_end_that_was_not_judged_because_of_an_exception_is_judged_later(monkeypatch: pytest.MonkeyPatch) -> None:
    def ring(rank: Rank) -> bool:
        raise _Alarm

    with _supervised() as (supervisor, starter):
        (rank,) = supervisor.ranks
        starter.start()
        supervisor.turn()
        rank.send(signal.SIGKILL)
        starter.wait()
        with monkeypatch.context() as patch:
            patch.setattr(supervisor, "on_end", ring)
            with pytest.raises(_Alarm):
                supervisor.turn()
        assert supervisor.unfinished == [rank]
        supervisor.turn(until=time.monotonic() + 20)
        assert (supervisor.ended, supervisor.unfinished) == (1, [])
