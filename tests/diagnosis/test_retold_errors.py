"""Errors of phalanx that torch raises again as a RuntimeError with their text."""

from __future__ import annotations

import functools
import pickle
import traceback
from collections.abc import Callable
from typing import Any

import pytest
import torch

from phalanx.diagnosis.retold_errors import remember, see_through, seen_through
from phalanx.diagnosis.tracebacks import format_error
from phalanx.errors import MismatchError, PeerDiedError, PhalanxError
from phalanx.launch.exceptions import find_consequence, headline_of


def _fail(error: BaseException, *, is_remembered: bool = True) -> None:
    """Raise what torch makes of an error in a callback of a future."""

    def fail(_: torch.futures.Future[Any]) -> None:
        if is_remembered and isinstance(error, PhalanxError):
            remember(error)
        raise error

    future: torch.futures.Future[Any] = torch.futures.Future()
    later = future.then(fail)
    future.set_result(None)
    later.wait()


def _caught(function: Callable[[], object]) -> BaseException:
    try:
        function()
    except BaseException as error:
        return error
    raise AssertionError


def _died(number: int) -> PeerDiedError:
    message = f"all_reduce #{number}: rank 3 died\n  do  look at it"
    return PeerDiedError(message, operation="all_reduce", sequence=number)


def test_the_error_is_found_with_its_attributes_and_the_calls_that_led_to_it() -> None:
    error = _caught(lambda: _fail(_died(20)))
    assert type(error) is RuntimeError
    seen = see_through(error)
    assert isinstance(seen, PeerDiedError)
    assert (str(seen), seen.sequence) == (str(_died(20)), 20)
    assert seen.__traceback__ is error.__traceback__
    assert headline_of(error) == "PeerDiedError: all_reduce #20: rank 3 died"
    assert isinstance(find_consequence(error), PeerDiedError)
    assert type(pickle.loads(pickle.dumps(seen))) is PeerDiedError


def test_the_error_of_the_majority_is_a_consequence() -> None:
    for rank, number in ((0, 21), (3, 22)):
        error = MismatchError(f"all_reduce #{number}: ranks disagree", rank=rank, num_ranks=4, sequence=number)
        error.sides = ((0, 1, 2), (3,))
        retold = _caught(functools.partial(_fail, error))
        assert (find_consequence(retold) is not None) is (rank == 0)


@pytest.mark.parametrize("error", [KeyError("batch"), RuntimeError("no error of phalanx"), RuntimeError(), _died(23)])
def test_other_errors_stay_as_they_are(error: BaseException) -> None:
    assert see_through(error) is error
    retold = _caught(lambda: _fail(error, is_remembered=False))
    assert see_through(retold) is retold


def test_the_first_of_many_failures_is_found() -> None:
    first = _caught(lambda: _fail(_died(30)))
    for number in range(500):
        remember(_died(1000 + number))
    seen = see_through(first)
    assert isinstance(seen, PeerDiedError)
    assert seen.sequence == 30


def _in_the_programs_words() -> None:
    try:
        _fail(_died(40))
    except RuntimeError as error:
        raise RuntimeError(f"step 7: {error}") from error


def test_the_programs_own_words_are_kept() -> None:
    error = _caught(_in_the_programs_words)
    assert see_through(error) is error
    assert headline_of(error).startswith("RuntimeError: step 7: ")
    assert isinstance(find_consequence(error), PeerDiedError)


def test_an_error_that_the_program_raises_later_keeps_its_words() -> None:
    text = str(_caught(lambda: _fail(_died(43))))
    for own in (f"step 7: {text}", f"{text}\nin step 7", f"{_died(43)} in step 7", f"lost a rank: {_died(43)}"):
        error = _caught(functools.partial(_raise_text, own))
        assert see_through(error) is error
        assert headline_of(error) == f"RuntimeError: {own.partition(chr(10))[0]}"


def _raise_text(text: str) -> None:
    raise RuntimeError(text)


def test_an_error_that_went_through_two_callbacks_is_found() -> None:
    def fail_twice() -> None:
        future: torch.futures.Future[Any] = torch.futures.Future()
        error = _died(44)
        remember(error)

        def fail(_: torch.futures.Future[Any]) -> None:
            raise error

        last = future.then(fail).then(lambda done: done.value())
        future.set_result(None)
        last.wait()

    assert headline_of(_caught(fail_twice)) == "PeerDiedError: all_reduce #44: rank 3 died"


def test_causes_are_shown_without_torchs_text() -> None:
    def fail() -> None:
        try:
            _fail(_died(41))
        except RuntimeError as error:
            raise ValueError("training failed") from error

    error = _caught(fail)
    cause = error.__cause__
    shown = format_error(error, is_full=False)
    assert "PeerDiedError: all_reduce #41: rank 3 died\n  do  look at it\n\nThe above" in shown
    assert "At:" not in shown
    assert error.__cause__ is cause
    assert format_error(error, is_full=True) == "".join(traceback.format_exception(error))
    assert "At:" in format_error(error, is_full=True)


def test_a_ring_of_causes_is_left_as_it_was() -> None:
    retold, other = _caught(lambda: _fail(_died(42))), KeyError("batch")
    retold.__cause__, other.__cause__ = other, retold
    with seen_through(retold) as seen:
        assert isinstance(seen, PeerDiedError)
        assert seen.__cause__ is other
        assert other.__cause__ is seen
    assert other.__cause__ is retold
    assert retold.__cause__ is other
