"""The thread that tells futures and the profiler when an operation is over.

It waits for operations in the order in which they were handed over, with the interpreter's lock released. It is stopped
before the interpreter ends: a thread inside torch at that moment aborts the process.
"""

from __future__ import annotations

import atexit
import contextlib
import queue
import threading
import weakref
from collections.abc import Callable

from phalanx.collectives import Work
from phalanx.errors import PhalanxError

_JOIN_S = 5.0


class Completer:
    """One group's thread, started when it is first needed. Threads may share it."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[tuple[Work, Callable[[], object]] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()  # guards _thread
        self._thread: threading.Thread | None = None

    def when_done(self, work: Work, tell: Callable[[], object]) -> None:
        """Call `tell` on this thread after the operation has ended, well or not."""
        self._queue.put((work, tell))
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="phalanx-completion", daemon=True)
                self._thread.start()
                _stop_at_exit(self)

    def is_current_thread(self) -> bool:
        """Tell whether the caller runs on this thread: then nothing may wait for it."""
        return threading.current_thread() is self._thread

    def stop(self) -> None:
        """End the thread after what it has been given; operations must be over or aborted by then."""
        with self._lock:
            thread, self._thread = self._thread, None
        if thread is not None and thread is not threading.current_thread():
            self._queue.put(None)
            thread.join(_JOIN_S)

    def _run(self) -> None:
        while (entry := self._queue.get()) is not None:
            work, tell = entry
            with contextlib.suppress(PhalanxError):  # `tell` looks at how it ended
                work.wait()
            tell()
            del work, tell, entry


_living: weakref.WeakSet[Completer] = weakref.WeakSet()


def _stop_at_exit(completer: Completer) -> None:
    if not _living:
        atexit.unregister(_stop_all)
        atexit.register(_stop_all)
    _living.add(completer)


def _stop_all() -> None:
    for completer in list(_living):
        completer.stop()
