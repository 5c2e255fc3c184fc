from __future__ import annotations

import pytest

from phalanx.errors import AbortedError, MismatchError, PeerDiedError
from phalanx.jobs.notes import MARK, Note, decode_note, describe_end
from phalanx.launch.disagreement import Disagreement


class _Mute(RuntimeError):
    def __str__(self) -> str:
        raise ValueError

    __repr__ = __str__


def _caught(error: BaseException, cause: BaseException | None = None) -> BaseException:
    try:
        if cause is None:
            raise error
        raise error from cause
    except BaseException as caught:
        return caught


def _received(note: Note) -> Note | None:
    return decode_note(note.encode().removeprefix(MARK).removesuffix(b"\n"))


def _mismatch(rank: int, *sides: tuple[int, ...]) -> MismatchError:
    error = MismatchError("all_reduce #1\n  here  x\n  do  y", group="world", rank=rank, num_ranks=4, sequence=1)
    error.sides, error.details = sides, (("here", "x"), ("do", "y"))
    return error


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ValueError("bad batch\nand more"), "ValueError: bad batch"),
        (KeyError("rate"), "KeyError: 'rate'"),
        (KeyboardInterrupt(), "KeyboardInterrupt"),
        (SystemExit(3), "sys.exit(3)"),
        (SystemExit("no data"), "sys.exit('no data')"),
        (_Mute(), "_Mute: (its text can't be shown)"),
        (SystemExit(_Mute()), "sys.exit(...), with a _Mute"),
        (PeerDiedError("barrier #1: rank 3 died\n  here  rank 0"), "PeerDiedError: barrier #1: rank 3 died"),
        (ValueError("x" * 9999), "ValueError: " + "x" * 485 + "..."),
    ],
)
def test_a_note_says_it_in_a_line_and_arrives_as_it_was_sent(error: BaseException, text: str) -> None:
    note = describe_end(_caught(error), 1)
    assert note.text == text
    assert note.place.startswith("jobs/test_notes.py:")
    assert _received(note) == note


def test_notes_of_an_exception_do_not_hide_it() -> None:
    error = ValueError("bad batch")
    error.add_note("raised in step 7")
    assert describe_end(_caught(error), 1).text == "ValueError: bad batch"


@pytest.mark.parametrize(
    ("error", "is_consequence"),
    [
        (_caught(ValueError()), False),
        (_caught(PeerDiedError("")), True),
        (_caught(AbortedError("")), True),
        (_caught(RuntimeError(), cause=PeerDiedError("")), True),
        (_caught(RuntimeError("[pair.cc:534] Connection closed by peer [127.0.0.1]:4242")), True),
        (_caught(ConnectionResetError("Connection reset by peer")), False),
        (_caught(_mismatch(0, (0, 1, 3), (2,))), True),
        (_caught(_mismatch(2, (0, 1, 3), (2,))), False),
        (_caught(_mismatch(0, (0, 1), (2, 3))), False),  # two against two: nobody knows who is right
        (_caught(_mismatch(0, (0,), (2,))), False),  # and two that have not come may decide it
        (_caught(_mismatch(1, (0,), (2,))), True),  # a rank that took no part in it
        (_caught(_mismatch(0)), False),  # a message: each side names the other
    ],
)
def test_what_another_rank_has_caused_is_known(error: BaseException, is_consequence: bool) -> None:
    assert describe_end(error, 1).is_consequence is is_consequence


def test_a_note_that_was_cut_off_is_none() -> None:
    assert decode_note(b"") is None
    assert decode_note(describe_end(ValueError(), 1).encode().removeprefix(MARK)[:20]) is None


def test_a_mismatch_says_which_rank_called_what() -> None:
    note = describe_end(_caught(_mismatch(2, (0, 1, 3), (2,))), 1)
    assert note.details == (("here", "x"), ("do", "y"))
    assert note.disagreement == Disagreement("world", 1, 4, 2, ((0, 1, 3), (2,)))
    assert _received(note) == note
    died = PeerDiedError("barrier #1\n  here  x")
    died.details = (("here", "x"),)
    assert describe_end(_caught(died), 1).details == ()


def test_a_very_long_traceback_is_not_in_the_note() -> None:
    assert describe_end(_caught(ValueError("x" * 99_999)), 1).traceback == ""
