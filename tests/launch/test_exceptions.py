from __future__ import annotations

import pytest

from phalanx.errors import AbortedError, PeerFailedError
from phalanx.launch.exceptions import find_consequence


def _raised(error: BaseException, *, cause: BaseException | None = None, context: BaseException | None = None) -> None:
    try:
        if context is not None:
            try:
                raise context
            except BaseException:
                raise error  # noqa: B904
        raise error from cause
    except type(error):
        pass


@pytest.mark.parametrize(
    "error", [PeerFailedError("rank 1 raised"), AbortedError("told to stop"), RuntimeError("Connection closed by peer")]
)
def test_what_says_that_another_rank_is_gone_is_a_consequence(error: BaseException) -> None:
    assert find_consequence(error) is error
    wrapped = ValueError("no result")
    _raised(wrapped, cause=error)
    assert find_consequence(wrapped) is error
    while_handled = KeyError("cleaning up")
    _raised(while_handled, context=error)
    assert find_consequence(while_handled) is error


@pytest.mark.parametrize("error", [ValueError("bad batch"), RuntimeError("out of memory"), None])
def test_what_a_rank_does_by_itself_is_none(error: BaseException | None) -> None:
    assert find_consequence(error) is None


def test_an_assertion_about_anothers_end_is_a_failure_of_its_own() -> None:
    error = AssertionError("the text is wrong")
    _raised(error, context=PeerFailedError("rank 1 raised"))
    assert find_consequence(error) is None
