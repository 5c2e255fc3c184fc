"""The ranks of one test of torch's: a policy of the supervisor, which also keeps what each rank printed last."""

from __future__ import annotations

import contextlib
import faulthandler
import itertools
import multiprocessing
import os
import re
import signal
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from phalanx.launch.forked_ranks import ChildProcess, ForkedRanks, fork_rank
from phalanx.launch.rank import Rank
from phalanx.launch.shutdown import Escalation
from phalanx.launch.supervisor import Supervisor
from phalanx.launch.world import open_world
from phalanx.launch.world_watch import WorldWatch

UPSTREAM_ERROR = 10  # a rank's exit code when its test raised
_OWN_ERROR = 11
_PATIENCE_S = 3.0  # for the other ranks, after one has failed, and for a late one to say where it stands
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


class UpstreamRanks(Supervisor[Rank]):
    """The ranks of one test. Call run() once: it leaves none of them behind.

    Attributes:
        late: Ranks that had to be ended.
    """

    # A rank that is asked with SIGUSR1 writes where it stands. Then it has the grace time to end.
    after_failure: Escalation = (None, signal.SIGUSR1, signal.SIGKILL)

    def __init__(self, num_ranks: int, folder: Path, play: Callable[[int, Any], None]) -> None:
        """Every rank will call `play` with its number and a pipe to here, and exit with what that raises."""
        self._closing = contextlib.ExitStack()
        world = self._closing.enter_context(open_world(num_ranks))
        super().__init__([Rank(number) for number in range(num_ranks)], WorldWatch(world), grace_s=_PATIENCE_S)
        self._closing.callback(self.watch.close)
        self._closing.callback(self.loop.close)
        self._folder, self._play = folder, play
        self._pipes: dict[int, Any] = {}
        self._messages: dict[int, str] = {}
        self.late: set[int] = set()

    def run(self, deadline: float) -> dict[int, int]:
        """Start the ranks and return their exit codes; a rank that is late is ended."""
        self.deadline = deadline
        starter = ForkedRanks()
        self._closing.callback(starter.close)
        with self._closing:
            try:
                for rank in self.ranks:
                    self._fork(rank, starter)
                self.listen_to(starter)
                while not self.is_over:
                    self.turn()
            finally:
                for rank in self.ranks:
                    if rank.process is not None:
                        rank.process.signal(signal.SIGKILL)  # also what it has left behind
                    rank.release()
        return {rank.number: _exit_code(rank) for rank in self.ranks}

    def _fork(self, rank: Rank, starter: ForkedRanks) -> None:
        ours, theirs = multiprocessing.Pipe()
        pid = fork_rank(lambda: self._be_rank(rank.number, theirs))
        theirs.close()
        starter.add(rank, pid, ChildProcess(pid))
        self._pipes[rank.number] = ours

    def _be_rank(self, rank: int, pipe: Any) -> None:
        try:
            log = os.open(self._folder / f"log.{rank}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.dup2(log, 1)
            os.dup2(log, 2)
            faulthandler.enable()
            faulthandler.register(signal.SIGUSR1, all_threads=True)
            self._play(rank, pipe)
        except SystemExit as leaving:
            sys.exit(leaving.code if isinstance(leaving.code, int) else 0)
        except BaseException:
            traceback.print_exc()
            sys.exit(_OWN_ERROR)

    def on_end(self, rank: Rank) -> bool:
        """Give the others little time if a rank has failed."""
        code = _exit_code(rank)
        if code < 0 or code in (UPSTREAM_ERROR, _OWN_ERROR):
            self.fail(rank)
        return code == 0

    def on_deadline(self) -> None:
        """End the ranks."""
        self.end_ranks(self.after_failure[1:])

    def before_signal(self, number: signal.Signals) -> None:
        """Note who is late."""
        self.late |= {rank.number for rank in self.unfinished}

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
