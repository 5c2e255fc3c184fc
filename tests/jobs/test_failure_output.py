from __future__ import annotations

import traceback

import pytest

from phalanx.jobs.failure_output import FailureOutput
from phalanx.jobs.notes import describe_end


def _failure() -> BaseException:
    try:
        import json

        json.loads("{")
    except ValueError as error:
        return error
    raise AssertionError


_ERROR = _failure()
_NOTE = describe_end(_ERROR, 1)
_PRINTED = "".join(traceback.format_exception(_ERROR)).encode()


@pytest.mark.parametrize("size", [1, 7, 100_000])
def test_what_was_printed_before_the_note_and_after_it_is_kept_apart(size: int) -> None:
    output, sent, later = FailureOutput(), _PRINTED + _NOTE.encode() + b"bye\0\n", b""
    for start in range(0, len(sent), size):
        output.feed(sent[start : start + size])
        later += output.take_later()
    assert (output.printed, output.note, later) == (_PRINTED, _NOTE, b"bye\0\n")
    assert output.take_later() == b""


def test_without_a_note_everything_is_shown() -> None:
    output = FailureOutput()
    output.feed(_PRINTED[:50])
    assert (output.note, output.shown()) == (None, _PRINTED[:50])


@pytest.mark.parametrize("prefix", [b"", b"[rank3]: "])
@pytest.mark.parametrize("colour", [b"", b"\x1b[31m"])
def test_the_rank_is_not_shown_twice_and_the_rest_stays(prefix: bytes, colour: bytes) -> None:
    output = FailureOutput()
    text = b"before\n" + _PRINTED + b"after\n"
    output.feed(b"".join(prefix + colour + line for line in text.splitlines(keepends=True)) + _NOTE.encode())
    assert output.shown() == b"before\n" + _NOTE.short.encode() + b"after\n"


def test_what_another_hook_prints_is_shown_as_it_is() -> None:
    output = FailureOutput()
    output.feed(b"\x1b[31mmy own words\x1b[0m\n" + _NOTE.encode())
    assert output.shown() == b"\x1b[31mmy own words\x1b[0m\n"


def test_the_first_part_of_a_long_text_can_be_taken_early() -> None:
    output = FailureOutput()
    output.feed(b"x" * 100)
    assert output.take_early(30) == b"x" * 70
    output.feed(_NOTE.encode()[:-1])  # the note is not complete, and must not be taken
    assert output.take_early(0) == b"x" * 30
    output.feed(b"\n")
    assert (output.printed, output.note) == (b"", _NOTE)
