"""Describe a rank's exception in one line, and find out whether another rank caused it."""

from __future__ import annotations

import traceback
from collections.abc import Iterator

from phalanx.diagnosis import formatting
from phalanx.diagnosis.retold_errors import see_through
from phalanx.diagnosis.stacks import is_users
from phalanx.diagnosis.tracebacks import text_of
from phalanx.errors import AbortedError, MismatchError, PeerError
from phalanx.launch.disagreement import read_disagreement

# The errors of Gloo and of torch's store when the other end of a connection has closed.
_LOST_CONNECTION = ("Connection closed by peer", "Connection reset by peer", "Socket closed", "Broken pipe")


def describe_exception(error: BaseException) -> str:
    """Return its type, its first line, and the innermost line of the user's own code."""
    place = place_of(error)
    return headline_of(error) + (f" ({place})" if place else "")


def headline_of(error: BaseException) -> str:
    """Return its type and its first line; if torch retells an error of phalanx, those of that error."""
    error = see_through(error)
    message = text_of(error).strip().partition("\n")[0]
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
    for each in _own_reasons(error):
        if isinstance(each, (PeerError, AbortedError)) or _is_mismatch_of_others(each):
            return each
        if isinstance(each, RuntimeError) and any(words in text_of(each) for words in _LOST_CONNECTION):
            return each
    return None


def find_mismatch(error: BaseException | None) -> MismatchError | None:
    """Return the mismatch that has caused an exception, if the rank took part in one."""
    for each in _own_reasons(error):
        if isinstance(each, MismatchError) and read_disagreement(each) is not None:
            return each
    return None


def _own_reasons(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an exception and those that it was raised from, up to a failed assertion."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen and not isinstance(error, AssertionError):
        seen.add(id(error))
        error = see_through(error)
        yield error
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def _is_mismatch_of_others(error: BaseException) -> bool:
    """Tell whether ranks made different calls, and this rank made none, or the same as more than half of them."""
    if not isinstance(error, MismatchError) or not error.sides:  # the two sides of a message blame each other
        return False
    own = read_disagreement(error)
    return own is None or own.is_right
