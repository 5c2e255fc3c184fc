"""Wait for the result that another process puts into a queue, unless it dies."""

from __future__ import annotations

import queue
import time
from typing import Any

_LOOK_S = 1.0
_LAST_LOOK_S = 0.2


def retrieve_result_from_completion_queue(process: Any, completion_queue: Any, timeout: float | None = None) -> Any:
    """Wait for the result of a process.

    Returns:
        The result; a RuntimeError, not raised, if the process has ended or the time is up.
    """
    start = time.monotonic()
    while True:
        left = _LOOK_S if timeout is None else min(_LOOK_S, timeout - (time.monotonic() - start))
        try:
            return completion_queue.get(timeout=max(left, 0.001))
        except queue.Empty:
            if not process.is_alive():
                return _last_result(process, completion_queue)
        elapsed = time.monotonic() - start
        if timeout is not None and elapsed > timeout:
            return RuntimeError(f"Process timed out after {elapsed}s")


def _last_result(process: Any, completion_queue: Any) -> Any:
    """Look once more: the process may have put in a result before it ended."""
    try:
        return completion_queue.get(timeout=_LAST_LOOK_S)
    except queue.Empty:
        return RuntimeError(f"Exited with {process.exitcode}")
