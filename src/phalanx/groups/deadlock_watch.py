"""End the waits of this process that can never end, because ranks wait for each other.

A thread looks while any rank of this process has waited for more than a second. The proof is in
phalanx.diagnosis.deadlock. Every process of a deadlock looks for itself, so the last rank that begins to wait finds it
a second or two later, whatever has started the ranks.
"""

from __future__ import annotations

import _thread
import logging
import os
import time
from collections.abc import Sequence

from phalanx.diagnosis.deadlock import Deadlock, find_deadlock
from phalanx.diagnosis.observer import Observer
from phalanx.diagnosis.views import GroupView, view_of
from phalanx.engine import forget_long_waits, num_long_waits, on_long_wait
from phalanx.groups.open_groups import open_groups_of_process
from phalanx.groups.other_threads import what_other_threads_run
from phalanx.settings import ends_deadlocks

_TICK_S = 0.3
_LONGEST_PAUSE_S = 20.0
_SLOWER_AFTER_S = 3.0  # a suspicion that was not confirmed in this time is looked at less often
_MOST_PROCESSES = 1024
_LONGEST_LOOK_S = 1.0

_log = logging.getLogger("phalanx")


class _Watch:
    """Looks for deadlocks, in a thread of its own that ends when nobody waits any more.

    It has no lock: a rank that waits may run a handler of a signal at any moment, which may wait as well.
    """

    def __init__(self) -> None:
        self._is_running = False
        self._num_notices = 0
        self._suspected: Deadlock | None = None
        self._since_s = 0.0  # when it was suspected first
        self.observer = Observer()

    def notice_long_wait(self) -> None:
        """Begin to look, or look again soon. A rank that waits calls this."""
        self._num_notices += 1
        if self._is_running:
            return
        self._is_running = True
        try:
            # Not a threading.Thread, which programs would find among their own threads.
            _thread.start_new_thread(self._look_again_and_again, ())
        except (RuntimeError, MemoryError) as problem:  # there may be no more threads, or the interpreter ends
            self._is_running = False
            _log.debug("nobody looks for deadlocks: %s", problem)

    def _look_again_and_again(self) -> None:
        num_known, pause_s, next_s = 0, _TICK_S, 0.0
        while self._goes_on():
            now_s = time.monotonic()
            if num_known != self._num_notices:
                num_known, pause_s, next_s = self._num_notices, _TICK_S, now_s
            if now_s >= next_s:
                try:
                    self._look(now_s)
                except Exception as problem:
                    _log.debug("a look for deadlocks failed: %s", problem)
                is_new = self._suspected is not None and now_s - self._since_s < _SLOWER_AFTER_S
                next_s = now_s + (_TICK_S if is_new else pause_s)
                pause_s = min(2 * pause_s, 2.0 if self._suspected is not None else _LONGEST_PAUSE_S)
            time.sleep(_TICK_S)

    def _goes_on(self) -> bool:
        if num_long_waits() > 0:
            return True
        num_notices, self._is_running, self._suspected = self._num_notices, False, None
        if num_notices == self._num_notices:
            return False
        self._is_running = True  # a rank began to wait, and saw that this thread was running
        return True

    def _look(self, now_s: float) -> None:
        self.observer = Observer()
        try:
            known = self.observer.follow_waits([os.getpid()], _MOST_PROCESSES, _LONGEST_LOOK_S)
            views = [view_of(group) for group in self.observer.groups]
            _publish_other_threads(views)
            found = find_deadlock(views, known)
            if found is None or all(key[0] != os.getpid() for key in found.ranks):
                self._suspected = None
            elif self._suspected is None or not found.is_like(self._suspected):
                self._suspected, self._since_s = found, now_s
            elif found.confirms(self._suspected, now_s - self._since_s):
                self._suspected = None
                _break_groups(found, self.observer)
        finally:
            self.observer.close()


def _publish_other_threads(views: Sequence[GroupView]) -> None:
    """Let others know what runs in threads of this process that have not called an operation."""
    own = [row for view in views for row in view.rows if row.pid == os.getpid() and row.state == "present"]
    others = what_other_threads_run(own)
    for group in open_groups_of_process():
        group._set_other_threads(others != "none", others == "program")


def _break_groups(found: Deadlock, observer: Observer) -> None:
    text = found.describe()
    groups = {group.nonce.hex(): group for group in observer.groups}
    for wait in found.waits:
        row = found.ranks[wait.key].rows[wait.nonce]
        groups[wait.nonce].break_deadlock(row.rank, 0 if wait.entry.is_message else wait.entry.seq, text)
    # A rank that raises may close all its groups at once, so it must not wake up before they all have their fault.
    for wait in found.waits:
        groups[wait.nonce].wake()


_watch = _Watch()


def watch_for_deadlocks() -> None:
    """From now on, end waits that can never end, unless PHALANX_DEADLOCK=wait.

    Raises:
        UsageError: PHALANX_DEADLOCK has another value.
    """
    on_long_wait(_watch.notice_long_wait if ends_deadlocks() else None)


def _begin_anew() -> None:
    global _watch  # noqa: PLW0603 - its thread is not in the child
    _watch.observer.close()
    _watch = _Watch()
    forget_long_waits()
    on_long_wait(None)


os.register_at_fork(after_in_child=_begin_anew)
