"""The thread that completes futures, or the events of the profiler, when an operation is over.

It waits for operations in the order in which they were handed over, with the interpreter's lock released. It is stopped
before the interpreter ends: a thread inside torch at that moment aborts the process.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import queue
import threading
import weakref
from collections.abc import Callable
from typing import TypeAlias

from phalanx.collectives import Work
from phalanx.errors import PhalanxError
from phalanx.launch.context import has_failed

_JOIN_S = 5.0
_log = logging.getLogger(__name__)
_here = threading.local()  # is_completing: whether this thread is one of ours
_Queue: TypeAlias = "queue.SimpleQueue[tuple[Work, Callable[[], object]] | None]"


class Completer:
    """A thread of a group, started when it is first needed. Threads may share it.

    Args:
        name: The name of the thread.
        cancel: Ends the running operations of the group; called when the interpreter ends.
    """

    def __init__(self, name: str, cancel: Callable[[], None]) -> None:
        self._name = name
        self._cancel = cancel
        self._lock = threading.Lock()  # guards _thread and _queue
        self._queue: _Queue = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def when_done(self, work: Work, act: Callable[[], object]) -> None:
        """Call `act` on this thread after the operation has ended, with or without an error."""
        with self._lock:
            if self._thread is None:
                thread = threading.Thread(target=_run, args=(self._queue,), name=self._name, daemon=True)
                thread.start()
                self._thread = thread
                _stop_at_exit(self)
            self._queue.put((work, act))

    def stop(self) -> None:
        """End the thread after the entries in its queue; their operations must have ended or been aborted by then."""
        with self._lock:
            thread, self._thread = self._thread, None
            self._queue.put(None)
            self._queue = queue.SimpleQueue()
        if thread is not None and thread is not threading.current_thread():
            thread.join(_JOIN_S)

    def cancel_and_stop(self) -> None:
        """Cancel the running operations, then end the thread."""
        self._cancel()
        self.stop()


def is_completing() -> bool:
    """Tell whether the caller is a callback on a completer's thread: then it must not wait for that thread."""
    return getattr(_here, "is_completing", False)


def _run(entries: _Queue) -> None:
    _here.is_completing = True
    while (entry := entries.get()) is not None:
        work, act = entry
        try:
            with contextlib.suppress(PhalanxError):  # `act` looks at how it ended
                work.wait()
        except Exception:
            _log.exception("an operation ended in an unexpected way")
        try:
            act()
        except Exception:
            _log.exception("a callback failed after an operation")
        del work, act, entry


_running: weakref.WeakSet[Completer] = weakref.WeakSet()


def _stop_at_exit(completer: Completer) -> None:
    if not _running:
        atexit.unregister(_stop_all)
        atexit.register(_stop_all)
    _running.add(completer)


def _stop_all() -> None:
    if has_failed():
        return  # this rank has failed, and does not leave its groups: its peers must not see a regular end
    for completer in list(_running):
        completer.cancel_and_stop()
