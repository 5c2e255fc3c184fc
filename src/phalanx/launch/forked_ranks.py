"""Ranks that this process has forked itself: each has all modules and objects of its parent."""

from __future__ import annotations

import atexit
import contextlib
import gc
import os
import random
import select
import signal
import sys
import warnings
from collections.abc import Callable, Iterable
from typing import Any

from phalanx.launch.orphans import adopt_orphans
from phalanx.launch.rank import UNKNOWN_STATUS, LocalProcess, Rank
from phalanx.launch.rank_process import flush_streams, live_as_rank
from phalanx.settings import set_environment_defaults


class ChildProcess(LocalProcess):
    """A child of this process, and what it has started."""

    def __init__(self, pid: int, *, has_group: bool = True) -> None:
        super().__init__(pid, has_group=has_group)

    def wait(self) -> int:
        """Wait for its end; return how it ended: exit code, 256 + signal, or UNKNOWN_STATUS."""
        try:
            _, status = os.waitpid(self._pid, 0)
        except ChildProcessError:  # somebody else has waited for it
            return UNKNOWN_STATUS
        code = os.waitstatus_to_exitcode(status)
        return code if code >= 0 else 256 - code


class ForkedRanks:
    """The starter of ranks that are children of this process."""

    def __init__(self) -> None:
        self._news = select.epoll()
        self._running: dict[int, tuple[Rank, ChildProcess]] = {}

    def add(self, rank: Rank, pid: int, process: ChildProcess) -> None:
        """Look after a rank that has been started."""
        rank.pid, rank.process = pid, process
        self._running[process.fileno()] = (rank, process)
        self._news.register(process.fileno(), select.EPOLLIN)

    def fileno(self) -> int:
        """Return what can be read when a rank has ended."""
        return self._news.fileno()

    def read(self) -> list[Rank]:
        """Return the ranks that have ended since the last time."""
        ended = []
        for descriptor, _ in self._news.poll(0):
            rank, process = self._running.pop(descriptor)
            self._news.unregister(descriptor)
            rank.status = process.wait()
            ended.append(rank)
        return ended

    @property
    def is_over(self) -> bool:
        """Whether all ranks have ended."""
        return not self._running

    def close(self) -> None:
        """Listen no more."""
        self._news.close()


def fork_rank(main: Callable[[], None]) -> int:
    """Fork a process that runs `main` as a rank does, and ends; return its id."""
    flush_streams()  # or every rank would print it again
    parent = os.getpid()
    state = random.getstate()

    def be_rank() -> None:
        random.setstate(state)  # Python has seeded it anew
        _become_rank(mask)
        main()
        atexit._run_exitfuncs()

    # Until the child is in a process group of its own, a Ctrl-C would make it go on as a second parent.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    with warnings.catch_warnings():
        # Python warns of threads. Theirs are not in the child, and it uses none of their locks.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        live_as_rank(parent, be_rank)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    with contextlib.suppress(OSError):  # the child does the same; the first call wins
        os.setpgid(pid, pid)
    return pid


def _become_rank(mask: Iterable[int]) -> None:
    adopt_orphans()  # so the process that ends this rank finds every process that the rank has started
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    gc.freeze()  # what came with the fork needs no looking through: that would copy its pages
    _forget_parents_duties()
    _use_one_thread()


def _forget_parents_duties() -> None:
    """Keep this copy from doing at its end what its parent has to do."""
    atexit._clear()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    processes: Any = sys.modules.get("multiprocessing.process")
    if processes is not None:
        processes._children.clear()


def _use_one_thread() -> None:
    """torch's thread pool does not survive a fork; ranks share the machine's cores anyway."""
    set_environment_defaults(OMP_NUM_THREADS="1")
    torch: Any = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(1)
