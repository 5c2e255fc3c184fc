"""Forked processes that run one test together, with a deadline and with their last words."""

from __future__ import annotations

import contextlib
import faulthandler
import itertools
import multiprocessing
import os
import re
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from phalanx.launch.forked_ranks import ChildProcess, ForkedRanks
from phalanx.launch.rank import Rank
from phalanx.launch.rank_process import die_with_parent
from phalanx.launch.waiting import is_readable

UPSTREAM_ERROR = 10  # a rank's exit code when its test raised
_OWN_ERROR = 11
_PATIENCE_S = 3.0  # for the other ranks, after one has failed
_LAST_LINES = 25
# In a dump of where a rank stands, its own code comes first and the main thread last: from here on it is only us.
_DRIVER_FRAME = re.compile(r'upstream_ranks\.py", line \d+ in ')


def _exit_code(rank: Rank) -> int:
    """Return how a rank has ended as Python's subprocesses do: a signal is negative."""
    status = rank.status or 0
    return status if status < 256 else 256 - status


@dataclass(frozen=True)
class End:
    """How a rank ended."""

    rank: int
    how: str
    last_words: str


class UpstreamRanks:
    """The ranks of one test. Call wait() once: it leaves none of them behind.

    Attributes:
        late: Ranks that had to be ended.
    """

    def __init__(self, num_ranks: int, folder: Path, play: Callable[[int, Any], None]) -> None:
        """Fork; every rank calls `play` with its number and a pipe to here, and exits with what that raises."""
        self._folder = folder
        self._ranks = [Rank(number) for number in range(num_ranks)]
        self._starter = ForkedRanks()
        self._pipes: dict[int, Any] = {}
        self._messages: dict[int, str] = {}
        self.late: set[int] = set()
        parent = os.getpid()
        sys.stdout.flush()
        sys.stderr.flush()
        for rank in self._ranks:
            ours, theirs = multiprocessing.Pipe()
            pid = os.fork()
            if pid == 0:
                self._be_rank(rank.number, parent, theirs, play)
            with contextlib.suppress(OSError):  # the rank does it too: whoever is first
                os.setpgid(pid, pid)
            theirs.close()
            self._starter.add(rank, pid, ChildProcess(pid))
            self._pipes[rank.number] = ours

    def _be_rank(self, rank: int, parent: int, pipe: Any, play: Callable[[int, Any], None]) -> None:
        code = _OWN_ERROR
        try:
            die_with_parent(parent)
            os.setpgid(0, 0)
            log = os.open(self._folder / f"log.{rank}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.dup2(log, 1)
            os.dup2(log, 2)
            faulthandler.enable()
            faulthandler.register(signal.SIGUSR1, all_threads=True)
            play(rank, pipe)
            code = 0
        except SystemExit as leaving:
            code = leaving.code if isinstance(leaving.code, int) else 0
        except BaseException:
            traceback.print_exc()
        finally:
            with contextlib.suppress(Exception):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(code)

    def wait(self, deadline: float) -> dict[int, int]:
        """Return every rank's exit code; a rank that is late is ended."""
        try:
            while not self._starter.is_over:
                deadline = self._turn(deadline)
        finally:
            self._kill()  # also what ranks have left behind
            for rank in self._ranks:
                rank.release()
            self._starter.close()
        return {rank.number: _exit_code(rank) for rank in self._ranks}

    def _turn(self, deadline: float) -> float:
        """Wait for the end of a rank, or for the deadline; return the new deadline."""
        if not is_readable(self._starter.fileno(), deadline - time.monotonic()):
            self._end_late()
            return time.monotonic() + _PATIENCE_S
        for rank in self._starter.read():
            code = _exit_code(rank)
            if code < 0 or code in (UPSTREAM_ERROR, _OWN_ERROR):
                deadline = min(deadline, time.monotonic() + _PATIENCE_S)
        return deadline

    def _end_late(self) -> None:
        late = [rank for rank in self._ranks if rank.status is None]
        for rank in late:
            if rank.number not in self.late:
                os.kill(rank.pid, signal.SIGUSR1)  # say where it stands
        time.sleep(0.2)
        self.late |= {rank.number for rank in late}
        self._kill()

    def _kill(self) -> None:
        for rank in self._ranks:
            if rank.process is not None and (rank.status is None or self._starter.is_over):
                rank.process.signal(signal.SIGKILL)

    def how_ended(self, rank: int, code: int) -> End:
        """Return in words how a rank ended badly, and what it said last."""
        if rank in self.late:
            how = "did not end in time"
        elif code < 0:
            how = f"was killed by {signal.Signals(-code).name}"
        else:
            how = f"exited with {code}"
        return End(rank, how, self._last_words(rank))

    def message(self, rank: int) -> str:
        """Return what a rank sent through its pipe, or nothing."""
        if rank not in self._messages:
            self._messages[rank] = ""
            with contextlib.suppress(EOFError, OSError):
                if self._pipes[rank].poll():
                    message = self._pipes[rank].recv()
                    self._messages[rank] = str(getattr(message, "traceback", message))
        return self._messages[rank]

    def output(self, rank: int) -> str:
        """Return what a rank wrote."""
        log = self._folder / f"log.{rank}"
        return log.read_text(errors="replace") if log.exists() else ""

    def _last_words(self, rank: int) -> str:
        text = self.message(rank) or self.output(rank)
        before_driver = itertools.takewhile(lambda line: not _DRIVER_FRAME.search(line), text.splitlines())
        lines = [line for line in before_driver if line.strip()][-_LAST_LINES:]
        return ":\n      " + "\n      ".join(lines) if lines else ""
