"""Ranks that this process forks itself: each has all modules and objects of its parent."""

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
    """A child of this process, and the processes that it has started."""

    def __init__(self, pid: int, *, has_group: bool = True) -> None:
        super().__init__(pid, has_group=has_group)

    def wait(self) -> int:
        """Wait for its end; return how it ended: exit code, 256 + signal, or UNKNOWN_STATUS."""
        try:
            _, status = os.waitpid(self._pid, 0)
        except ChildProcessError:  # other code has waited for it
            return UNKNOWN_STATUS
        code = os.waitstatus_to_exitcode(status)
        return code if code >= 0 else 256 - code


class ForkedRanks:
    """The starter of ranks that are children of this process."""

    def __init__(self) -> None:
        self._news = select.epoll()
        self._running: dict[int, tuple[Rank, ChildProcess]] = {}

    def add(self, rank: Rank, pid: int, process: ChildProcess) -> None:
        """Watch a rank that was started.

        Raises:
            OSError: The kernel has no memory for that. The rank counts as not started.
        """
        self._news.register(process.fileno(), select.EPOLLIN)
        rank.pid, rank.process = pid, process
        self._running[process.fileno()] = (rank, process)

    def fileno(self) -> int:
        """Return a descriptor that becomes readable when a rank has ended."""
        return self._news.fileno()

    def read(self) -> list[Rank]:
        """Return the ranks that have ended since the last time."""
        ended = []
        for descriptor, _ in self._news.poll(0):
            rank, process = self._running[descriptor]
            rank.status = process.wait()  # first: if an exception comes after this, the end of the rank is not lost
            self._news.unregister(descriptor)
            del self._running[descriptor]
            ended.append(rank)
        return ended

    @property
    def is_over(self) -> bool:
        """Whether all ranks have ended."""
        return not self._running

    def close(self) -> None:
        """Stop watching the ranks."""
        self._news.close()


def fork_rank(main: Callable[[], None], on_start: Callable[[int], None] = lambda pid: None) -> int:
    """Fork a process that runs `main` as a rank does, and ends; return its id.

    Args:
        main: The function that it runs.
        on_start: Called with its id before a Ctrl-C can interrupt this process.

    Raises:
        OSError: There is no process for it, or `on_start` raised this.
    """
    flush_streams()  # otherwise every rank would print the buffered text again
    parent = os.getpid()
    state = random.getstate()

    def be_rank() -> None:
        random.setstate(state)  # Python has seeded the generator anew
        _become_rank(mask)
        main()
        atexit._run_exitfuncs()

    # Until the child has its own process group, a Ctrl-C would make it continue as a second parent.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        with warnings.catch_warnings():
            # Python warns about threads. They do not exist in the child, which uses none of their locks.
            warnings.simplefilter("ignore", DeprecationWarning)
            pid = os.fork()
        if pid == 0:
            live_as_rank(parent, be_rank)  # it never returns
        with contextlib.suppress(OSError):  # the child does the same; the first call wins
            os.setpgid(pid, pid)
        on_start(pid)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    return pid


def _become_rank(mask: Iterable[int]) -> None:
    adopt_orphans()  # so the process that ends this rank finds every process that the rank has started
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    gc.freeze()  # the collector must not visit the parent's objects: that would copy their pages
    _forget_parents_duties()
    _use_one_thread()


def _forget_parents_duties() -> None:
    """Remove the parent's exit handlers, signal handlers and children: only the parent deals with them."""
    atexit._clear()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    processes: Any = sys.modules.get("multiprocessing.process")
    if processes is not None:
        processes._children.clear()


def _use_one_thread() -> None:
    """Use one thread: torch's thread pool does not survive a fork, and ranks share the cores anyway."""
    set_environment_defaults(OMP_NUM_THREADS="1")
    torch: Any = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(1)
