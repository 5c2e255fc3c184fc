from __future__ import annotations

import pytest

from phalanx.errors import AbortedError, MismatchError, PeerDiedError
from phalanx.jobs.notes import MARK, Note, decode_note, describe_end


class _Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError


def _caught(error: BaseException, cause: BaseException | None = None) -> BaseException:
    try:
        if cause is None:
            raise error
        raise error from cause
    except BaseException as caught:
        return caught


def _received(note: Note) -> Note | None:
    return decode_note(note.encode().removeprefix(MARK).removesuffix(b"\n"))


def _mismatch(rank: int, culprits: tuple[int, ...], verdict: str = "different shape") -> MismatchError:
    return MismatchError(
        "all_reduce #1\n  here  x\n  do  y", rank=rank, num_ranks=4, culprits=culprits, verdict=verdict
    )


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ValueError("bad batch\nand more"), "ValueError: bad batch"),
        (KeyError("rate"), "KeyError: 'rate'"),
        (KeyboardInterrupt(), "KeyboardInterrupt"),
        (SystemExit(3), "sys.exit(3)"),
        (SystemExit("no data"), "sys.exit('no data')"),
        (_Mute(), "_Mute: (its text can't be shown)"),
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
        (_caught(_mismatch(0, (2,))), True),
        (_caught(_mismatch(2, (2,))), False),
        (_caught(_mismatch(0, (2, 3))), False),  # two against two: nobody knows who is right
        (_caught(_mismatch(0, (1,), "different message")), False),  # each side names the other
    ],
)
def test_what_another_rank_has_caused_is_known(error: BaseException, is_consequence: bool) -> None:
    assert describe_end(error, 1).is_consequence is is_consequence


def test_a_note_that_was_cut_off_is_none() -> None:
    assert decode_note(b"") is None
    assert decode_note(describe_end(ValueError(), 1).encode().removeprefix(MARK)[:20]) is None


def test_a_mismatch_says_which_rank_called_what() -> None:
    assert describe_end(_caught(_mismatch(2, (2,))), 1).details == ("  here  x", "  do  y")
    assert describe_end(_caught(PeerDiedError("barrier #1\n  here  x")), 1).details == ()


def test_a_very_long_traceback_is_not_in_the_note() -> None:
    assert describe_end(_caught(ValueError("x" * 99_999)), 1).traceback == ""
