from __future__ import annotations

import pytest

from phalanx.errors import AbortedError, PeerDiedError
from phalanx.jobs.notes import decode_note, describe_end


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
    assert decode_note(note.encode()) == note
    assert len(note.encode()) < 4096


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
    ],
)
def test_what_another_rank_has_caused_is_known(error: BaseException, is_consequence: bool) -> None:
    assert describe_end(error, 1).is_consequence is is_consequence


def test_a_note_that_was_cut_off_is_none() -> None:
    assert decode_note(b"") is None
    assert decode_note(describe_end(ValueError(), 1).encode()[:20]) is None
