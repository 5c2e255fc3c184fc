"""End the processes that ranks leave behind: children, and daemons that have left their process group and session.

A process that adopts orphans gets all of them as children in the end. So it ends its children until it has none.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from collections.abc import Container

from phalanx.diagnosis.processes import children_of

_PR_SET_CHILD_SUBREAPER = 36
# Helper processes of multiprocessing and torch clean up when their parent has ended. These times let them do so.
ASK_AFTER_S = 0.1
KILL_AFTER_S = 0.5
_GIVE_UP_AFTER_S = 10.0  # a process that survives SIGKILL this long hangs in the kernel
_BETWEEN_LOOKS_S = 0.002
# The kernel's list of children may miss one while others end, so look twice.
_SURE_AFTER_LOOKS = 2
_FORGET_AFTER_S = 2.0


def adopt_orphans() -> None:
    """Make this process the parent of descendants whose parents have ended."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def own_children() -> list[int]:
    """Return the ids of this process's children, including dead ones that were not waited for."""
    return children_of("self")


def end_children(keep: Container[int] = ()) -> None:
    """End all children except those in `keep`, and all their children; return when they have ended."""
    if not _has_children():
        return
    began = time.monotonic()
    asked: set[int] = set()
    num_empty = 0
    while num_empty < _SURE_AFTER_LOOKS:
        left = [pid for pid in own_children() if pid not in keep and not _reap(pid)]
        num_empty = 0 if left else num_empty + 1
        age_s = time.monotonic() - began
        if age_s > _GIVE_UP_AFTER_S:
            return
        for pid in left:
            if age_s > KILL_AFTER_S:
                _send(pid, signal.SIGKILL)
            elif age_s > ASK_AFTER_S and pid not in asked:
                asked.add(pid)
                _send(pid, signal.SIGTERM)
        time.sleep(_BETWEEN_LOOKS_S)


def _has_children() -> bool:
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def kill_descendants(pid: int) -> None:
    """Kill all descendants of a process that adopts orphans. It is stopped, and the caller must kill it next."""
    _send(pid, signal.SIGSTOP)  # so that it starts no more processes
    for _ in range(_SURE_AFTER_LOOKS):
        todo, found = [pid], list[int]()
        while todo:
            below = children_of(todo.pop())
            todo += below
            found += below
        for descendant in found:
            _send(descendant, signal.SIGKILL)


class OrphanReaper:
    """Ends the process groups of ranks that have ended, while other ranks run."""

    def __init__(self) -> None:
        self._groups: dict[int, float] = {}  # when the rank of each process group ended

    def is_busy(self) -> bool:
        """Tell whether to call `look` again soon."""
        return bool(self._groups)

    def expect(self, group: int) -> None:
        """Take over the process group of a rank that has just ended."""
        self._groups[group] = time.monotonic()

    def look(self) -> None:
        """Send signals to the processes whose grace time is over."""
        members: dict[int, list[int]] = {group: [] for group in self._groups}
        for pid in own_children():
            with contextlib.suppress(ProcessLookupError):
                members.get(os.getpgid(pid), []).append(pid)
        for group, pids in members.items():
            age_s = time.monotonic() - self._groups[group]
            for pid in pids:
                if age_s > ASK_AFTER_S:
                    _send(pid, signal.SIGKILL if age_s > KILL_AFTER_S else signal.SIGTERM)
            if not pids and age_s > _FORGET_AFTER_S:
                del self._groups[group]


def _reap(pid: int) -> bool:
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:
        return True


def _send(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):  # it has ended, or changed its user
        os.kill(pid, number)
