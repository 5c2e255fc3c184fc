"""The groups that this process has open: found by whatever concerns all of a rank, left in good order at exit."""

from __future__ import annotations

import atexit
import sys
import weakref
from typing import TYPE_CHECKING

from phalanx.engine import RankEndpoint
from phalanx.launch.context import current_context, has_failed, on_failure
from phalanx.launch.exceptions import describe_exception

if TYPE_CHECKING:
    from phalanx.groups.shared_memory import SharedMemoryGroup

_open: weakref.WeakSet[SharedMemoryGroup] = weakref.WeakSet()


def add_open_group(group: SharedMemoryGroup) -> None:
    """Let a process that ends without close() leave in good order: its peers must not take it for dead."""
    if not _open:
        atexit.unregister(_close_all)
        atexit.register(_close_all)
    on_failure(_fail_all)
    _open.add(group)


def open_groups() -> list[SharedMemoryGroup]:
    """Return the open groups of the calling rank."""
    context = current_context()
    return [group for group in list(_open) if group._context is context and not group.is_closed]


def _fail_all(why: str) -> None:
    """Break all groups of the calling rank: also those that its launcher does not know."""
    for group in open_groups():
        group.fail(why)


def _close_all() -> None:
    if has_failed():
        return
    error = _uncaught_exception()
    for group in list(_open):
        if error is not None and not group.is_closed:
            group.fail(describe_exception(error))  # peers shall hear why, not see this rank leave
        RankEndpoint.close(group)


def _uncaught_exception() -> BaseException | None:
    """Return what the program ends with, if Python has just printed its traceback."""
    if hasattr(sys, "ps1"):  # a person types at it, and has seen many
        return None
    return getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
