"""An exception in a line, for other ranks to read: what, and where in the user's program."""

from __future__ import annotations

import traceback

from phalanx.diagnosis import words
from phalanx.diagnosis.stacks import is_users


def describe_exception(error: BaseException) -> str:
    """Write its type, its first line, and the innermost line of the user's own code."""
    told = traceback.format_exception_only(error)[-1].strip().splitlines()
    place = place_of(error)
    return (told[0] if told else type(error).__name__) + (f" ({place})" if place else "")


def place_of(error: BaseException) -> str:
    """Return file and line of the user's own code where it was raised; empty when there is none."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if is_users(frame.filename)]
    return f"{words.place(frames[-1].filename)}:{frames[-1].lineno}" if frames else ""
