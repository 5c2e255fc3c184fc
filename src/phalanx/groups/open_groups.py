"""The groups that this process has open, which it leaves when it exits."""

from __future__ import annotations

import atexit
import sys
import weakref
from types import FrameType

from phalanx.diagnosis.stacks import is_launchers, is_users
from phalanx.engine import RankEndpoint
from phalanx.launch.context import LaunchContext, current_context, has_failed, on_failure
from phalanx.launch.exceptions import describe_exception

# Each group with the id of its rank's context. The context itself may refer to the group, and would keep it alive.
_open: weakref.WeakKeyDictionary[RankEndpoint, int] = weakref.WeakKeyDictionary()


def add_open_group(group: RankEndpoint, context: LaunchContext | None) -> None:
    """Register a group, so that a process that exits without close() leaves it and does not look dead to its peers.

    Args:
        group: The group, which keeps the context alive.
        context: The context of this rank.
    """
    if not _open:
        atexit.unregister(_close_all)
        atexit.register(_close_all)
    on_failure(_fail_all)
    _open[group] = id(context)


def open_groups() -> list[RankEndpoint]:
    """Return the open groups of the calling rank."""
    own = id(current_context())
    return [group for group, context in list(_open.items()) if context == own and not group.is_closed]


def open_groups_of_process() -> list[RankEndpoint]:
    """Return the open groups of all ranks of this process."""
    return [group for group in list(_open) if not group.is_closed]


def note_end() -> None:
    """Note that the calling rank has done its part: peers that still wait for it learn that, when it leaves."""
    for group in open_groups():
        group._note_end()


def is_program_over() -> bool:
    """Tell whether the calling thread runs nothing of the program any more: the function of its rank has returned."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not is_launchers(frame.f_code.co_filename):
        if is_users(frame.f_code.co_filename):
            return False
        frame = frame.f_back
    return True


def _fail_all(why: str) -> None:
    """Break all groups of the calling rank, including those that its launcher does not know."""
    for group in open_groups():
        group.fail(why)


def _close_all() -> None:
    if has_failed():
        return
    error = _uncaught_exception()
    for group in list(_open):
        if error is not None and not group.is_closed:
            group.fail(describe_exception(error))  # so that peers get the reason, not a PeerLeftError
        group._note_end()
        RankEndpoint.close(group)


def _uncaught_exception() -> BaseException | None:
    """Return the exception that ends the program, if Python has just printed its traceback."""
    if hasattr(sys, "ps1"):  # an interactive session: the exception did not end the program
        return None
    return getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
