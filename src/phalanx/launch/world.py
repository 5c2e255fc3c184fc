"""The world of ranks that are started together: its memory, and the name under which its later groups meet."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager

from phalanx.engine import GroupSegment, create_group_segment

WORLD_NAME = "world"


def name_meeting() -> str:
    """Return a new name for a meeting, which nobody can guess."""
    return f"world {os.getpid()}-{secrets.token_hex(16)}"


def create_world(num_ranks: int) -> GroupSegment:
    """Make the memory that all ranks share from the beginning.

    Raises:
        SharedMemoryError: The machine does not have enough memory.
    """
    return create_group_segment(WORLD_NAME, num_ranks, crowd=num_ranks)


@contextmanager
def open_world(num_ranks: int) -> Iterator[GroupSegment]:
    """Make the memory of a world, and close it at the end.

    Raises:
        SharedMemoryError: The machine does not have enough memory.
    """
    segment = create_world(num_ranks)
    try:
        yield segment
    finally:
        segment.close_descriptor()
