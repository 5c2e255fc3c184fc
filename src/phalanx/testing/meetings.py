"""Names of places where only the ranks of one task meet."""

from __future__ import annotations

import os
import secrets


def name_meeting() -> str:
    """Make up a name that nobody can guess."""
    return f"world {os.getpid()}-{secrets.token_hex(16)}"
