"""Errors of phalanx that torch's C++ code raises again as a plain RuntimeError.

DDP's C++ code waits for futures. If one fails, torch keeps only the text of the error and raises a RuntimeError with
that text, a sentence of torch's before it, and the calls of the thread behind it ("At: ..."). torch has no way to keep
the error itself. So the backend remembers each error that it gives to a future. The code that reports the RuntimeError
finds the remembered error, because the RuntimeError consists of its text and of what torch adds. If there is anything
else in it, the program has raised it, with words of its own.
"""

from __future__ import annotations

import contextlib
import copy
import re
from collections import deque
from collections.abc import Iterator

from phalanx.errors import PhalanxError

_MOST_REMEMBERED = 1000  # DDP reports the first bucket that failed, and many later ones may have failed since
_BEFORE = re.compile(r"(Got the following error when running the callback: \w+: )+")
_BEHIND = re.compile(r"(\n+At:\n(  .*\n)*)*")
_remembered: deque[PhalanxError] = deque(maxlen=_MOST_REMEMBERED)


def remember(error: PhalanxError) -> None:
    """Remember an error that torch is about to retell; a copy, so that its traceback keeps no tensors alive."""
    _remembered.append(copy.copy(error))


def see_through(error: BaseException) -> BaseException:
    """Return the error of phalanx that a RuntimeError of torch retells, with the traceback of that RuntimeError.

    Returns:
        The exception itself if it is anything else.
    """
    original = _find_original(error)
    if original is None:
        return error
    seen = copy.copy(original).with_traceback(error.__traceback__)
    _link(seen, error.__cause__, error.__context__, error.__suppress_context__)
    for note in getattr(error, "__notes__", ()):
        seen.add_note(note)
    return seen


def _find_original(error: BaseException) -> PhalanxError | None:
    if type(error) is not RuntimeError or not _remembered:
        return None
    original = next((each for each in reversed(list(_remembered)) if _retells(error, each)), None)
    if original is None or _retells(error.__cause__, original) or _retells(error.__context__, original):
        return None  # the program itself has raised it, with words of its own around torch's
    return original


def _retells(error: BaseException | None, original: PhalanxError) -> bool:
    if type(error) is not RuntimeError or not error.args:
        return False
    text = error.args[0]
    if not isinstance(text, str):
        return False
    before, _, behind = text.partition(str(original))
    return _BEFORE.fullmatch(before) is not None and _BEHIND.fullmatch(behind) is not None


@contextlib.contextmanager
def seen_through(error: BaseException) -> Iterator[BaseException]:
    """Give the block what see_through() returns; inside the block, this holds for the causes of the exception too."""
    seen = {id(each): see_through(each) for each in chain_of(error)}
    links = [(each, each.__cause__, each.__context__, each.__suppress_context__) for each in seen.values()]
    try:
        for each, cause, context, is_suppressed in links:
            _link(each, seen.get(id(cause)), seen.get(id(context)), is_suppressed)
        yield seen[id(error)]
    finally:
        for each, cause, context, is_suppressed in links:
            _link(each, cause, context, is_suppressed)


def _link(
    error: BaseException, cause: BaseException | None, context: BaseException | None, is_suppressed: bool
) -> None:
    error.__cause__, error.__context__ = cause, context
    error.__suppress_context__ = is_suppressed  # which an assignment to __cause__ has set


def chain_of(error: BaseException) -> list[BaseException]:
    """Return an exception, its causes, and what was being handled when they were raised."""
    found: list[BaseException] = []
    todo: list[BaseException | None] = [error]
    while todo:
        each = todo.pop()
        if each is not None and not any(each is other for other in found):
            found.append(each)
            todo += [each.__cause__, each.__context__]
    return found
