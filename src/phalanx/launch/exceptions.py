"""An exception in a line, for other ranks and for people: what, and where in the user's program."""

from __future__ import annotations

import traceback

from phalanx.diagnosis import formatting
from phalanx.diagnosis.stacks import is_users


def describe_exception(error: BaseException) -> str:
    """Write its type, its first line, and the innermost line of the user's own code."""
    place = place_of(error)
    return headline_of(error) + (f" ({place})" if place else "")


def headline_of(error: BaseException) -> str:
    """Write its type and its first line."""
    try:
        message = str(error).strip().partition("\n")[0]
    except Exception:  # of the program: its exceptions may do anything
        message = "(its text can't be shown)"
    return f"{type(error).__name__}: {message}" if message else type(error).__name__


def place_of(error: BaseException) -> str:
    """Return file and line of the user's own code where it was raised; empty when there is none."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if is_users(frame.filename)]
    return f"{formatting.place(frames[-1].filename)}:{frames[-1].lineno}" if frames else ""
