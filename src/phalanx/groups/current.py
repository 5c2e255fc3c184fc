"""The group a thread works with at the moment: set by `with group:`, nested, restored on the way out."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from phalanx.groups.shared_memory import SharedMemoryGroup

_stacks = threading.local()


def _stack() -> list[SharedMemoryGroup]:
    if not hasattr(_stacks, "groups"):
        _stacks.groups = []
    groups: list[SharedMemoryGroup] = _stacks.groups
    return groups


def current_group() -> SharedMemoryGroup | None:
    """Return the innermost group of the calling thread's `with` blocks, or None."""
    stack = _stack()
    return stack[-1] if stack else None


def enter_group(group: SharedMemoryGroup) -> None:
    """Make a group current."""
    _stack().append(group)


def leave_group() -> None:
    """Go back to the group that was current before."""
    _stack().pop()
