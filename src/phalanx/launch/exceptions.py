"""Describe a rank's exception in one line, and find out whether another rank caused it."""

from __future__ import annotations

import traceback

from phalanx.diagnosis import formatting
from phalanx.diagnosis.retold_errors import see_through
from phalanx.diagnosis.stacks import is_users
from phalanx.errors import AbortedError, MismatchError, PeerError

# The errors of Gloo and of torch's store when the other end of a connection has closed.
_LOST_CONNECTION = ("Connection closed by peer", "Connection reset by peer", "Socket closed", "Broken pipe")


def describe_exception(error: BaseException) -> str:
    """Return its type, its first line, and the innermost line of the user's own code."""
    place = place_of(error)
    return headline_of(error) + (f" ({place})" if place else "")


def headline_of(error: BaseException) -> str:
    """Return its type and its first line; if torch retells an error of phalanx, those of that error."""
    error = see_through(error)
    try:
        message = str(error).strip().partition("\n")[0]
    except Exception:  # __str__ of the user's exception may raise anything
        message = "(its text can't be shown)"
    return f"{type(error).__name__}: {message}" if message else type(error).__name__


def place_of(error: BaseException) -> str:
    """Return file and line of the user's own code where it was raised; empty when there is none."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if is_users(frame.filename)]
    return f"{formatting.place(frames[-1].filename)}:{frames[-1].lineno}" if frames else ""


def find_consequence(error: BaseException | None) -> BaseException | None:
    """Return the exception which says that another rank has failed: this one, or one that it was raised from.

    Returns:
        None if the rank has failed by itself. A failed assertion is always the rank's own failure.
    """
    seen: set[int] = set()
    while error is not None and id(error) not in seen and not isinstance(error, AssertionError):
        seen.add(id(error))
        error = see_through(error)
        if isinstance(error, (PeerError, AbortedError)) or _is_of_majority(error):
            return error
        if isinstance(error, RuntimeError) and any(words in str(error) for words in _LOST_CONNECTION):
            return error
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return None


def _is_of_majority(error: BaseException) -> bool:
    """Tell whether ranks made different calls, and this rank the same call as more than half of them."""
    if not isinstance(error, MismatchError) or error.verdict == "different message":  # whose two sides blame each other
        return False
    is_minority_known = 0 < 2 * len(error.culprits) < (error.num_ranks or 0)
    return is_minority_known and error.rank not in error.culprits
