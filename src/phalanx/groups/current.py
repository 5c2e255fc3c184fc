"""The current group of a thread: `with group:` sets it, and the end of the block restores the previous one."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from phalanx.collectives import Group

_stacks = threading.local()


def _stack() -> list[Group]:
    if not hasattr(_stacks, "groups"):
        _stacks.groups = []
    groups: list[Group] = _stacks.groups
    return groups


def current_group() -> Group | None:
    """Return the innermost group of the calling thread's `with` blocks, or None."""
    stack = _stack()
    return stack[-1] if stack else None


def enter_group(group: Group) -> None:
    """Make a group current."""
    _stack().append(group)


def leave_group() -> None:
    """Go back to the group that was current before."""
    _stack().pop()
