"""Names of places where only the ranks of one task meet, and the file in which torch's stores keep what they need."""

from __future__ import annotations

import os
import secrets
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def name_meeting() -> str:
    """Make up a name."""
    return f"world {os.getpid()}-{secrets.token_hex(8)}"


@contextmanager
def open_meeting() -> Iterator[str]:
    """Make up a name for a task, and remove the file once all its ranks have ended."""
    name = name_meeting()
    try:
        yield name
    finally:
        rendezvous_file(name).unlink(missing_ok=True)


def rendezvous_file(meeting: str) -> Path:
    """Return the file that belongs to a meeting. Not for one rank to remove: others may still need it."""
    return Path(tempfile.gettempdir()) / f"phalanx-{meeting.rpartition(' ')[2]}"
