from __future__ import annotations

import pytest

from phalanx.jobs.output import LONGEST_LINE_BYTES, LineSplitter, without_own_number


def _lines(*pieces: bytes) -> list[bytes]:
    splitter = LineSplitter()
    return [line for piece in pieces for line in splitter.feed(piece)] + splitter.finish()


@pytest.mark.parametrize(
    ("pieces", "lines"),
    [
        ([b"one\ntwo\n"], [b"one", b"two"]),
        ([b"on", b"e\n\ntwo"], [b"one", b"", b"two"]),
        ([b"dos\r\nends\r\n"], [b"dos", b"ends"]),
        ([b"dos\r", b"\nends\r\n"], [b"dos", b"ends"]),
        ([b"\r10%", b"\r20%", b"\r100%\n"], [b"100%"]),
        ([b"10%\r20%\r"], [b"20%"]),
        ([b"\r10%\r   \r", b"done\n"], [b"done"]),
        ([b"\r10%\r   \r"], []),
        ([b"\r\x1b[2K10%\r\x1b[2K20%\n"], [b"20%"]),
        ([b"\x1b[31mred\x1b[0m\n"], [b"\x1b[31mred\x1b[0m"]),
        ([b"\x1b[2Jcleared\n"], [b"cleared"]),
        ([b"\xff\xfe\x00\n"], [b"\xff\xfe\x00"]),
        ([b""], []),
    ],
)
def test_a_line_is_what_a_terminal_shows_in_the_end(pieces: list[bytes], lines: list[bytes]) -> None:
    assert _lines(*pieces) == lines


def test_bars_below_each_other_are_redrawn_and_not_printed() -> None:
    splitter = LineSplitter()
    for step in range(5):
        assert not [line for line in splitter.feed(b"\router %d\n\rinner %d\x1b[A" % (step, step)) if b"inner" in line]
    assert splitter.is_rewritten
    assert splitter.feed(b"\router 5\nend\n")[-1] == b"end"


def test_what_is_not_finished_can_be_seen() -> None:
    splitter = LineSplitter()
    splitter.feed(b"loading")
    assert (splitter.pending(), splitter.is_rewritten) == (b"loading", False)
    splitter.feed(b"\r50%\r")
    assert (splitter.pending(), splitter.is_rewritten) == (b"50%", True)
    splitter.feed(b"\r51%")
    assert splitter.pending() == b"51%"
    splitter.feed(b"\n")
    assert splitter.pending() == b""


def test_a_bar_that_never_ends_takes_no_memory() -> None:
    splitter = LineSplitter()
    for step in range(10_000):
        splitter.feed(b"\r%d" % step * 10)
    assert len(splitter._rest) < 100


def test_a_line_without_end_is_broken() -> None:
    splitter = LineSplitter()
    piece = b"x" * (LONGEST_LINE_BYTES // 4)
    lines = [line for _ in range(9) for line in splitter.feed(piece)]
    assert [len(line) for line in lines] == [LONGEST_LINE_BYTES + len(piece)]
    assert sum(map(len, [*lines, *splitter.finish()])) == 9 * len(piece)


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        (b"[rank3]:[W1120 00:27:35.951 socket.cpp:1] careful", b"[W1120 00:27:35.951 socket.cpp:1] careful"),
        (b"[rank3]:W1120 00:27:35.951 train.py:1] careful", b"W1120 00:27:35.951 train.py:1] careful"),
        (b"[rank3]: Traceback (most recent call last):", b"Traceback (most recent call last):"),
        (b'[rank3]:   File "train.py", line 3', b'  File "train.py", line 3'),
        (b"[rank3]:", b""),
        (b"[rank31]: of another rank", b"[rank31]: of another rank"),
        (b"[rank1]: of another rank", b"[rank1]: of another rank"),
        (b"said [rank3]: here", b"said [rank3]: here"),
        (b"[rank3] without a colon", b"[rank3] without a colon"),
    ],
)
def test_a_line_does_not_name_its_own_rank_twice(line: bytes, shown: bytes) -> None:
    assert without_own_number(3, [line, b"plain"]) == [shown, b"plain"]
