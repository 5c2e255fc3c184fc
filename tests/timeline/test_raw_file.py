from __future__ import annotations

import struct
from pathlib import Path

import pytest

from phalanx.errors import UsageError
from phalanx.timeline.raw_file import read_raw_file
from tests.timeline.raw_files import UNIX_MINUS_MONOTONIC_NS, RawRank


def test_every_field_of_a_collective_is_read(tmp_path: Path) -> None:
    rank = RawRank(3, pid=77, host="node-1").group(0, "data", rank=1, num_ranks=4, nonce=b"n" * 16)
    rank.call("reduce", 9, 100, 350, shape=(2, 3), dtype="bfloat16", op="max", root=2, size_bytes=12, is_async=True,
              place="train.py:61")  # fmt: skip
    raw = read_raw_file(rank.write(tmp_path))
    assert (raw.header.rank, raw.header.pid, raw.header.host) == (3, 77, "node-1")
    assert raw.header.unix_minus_monotonic_ns == UNIX_MINUS_MONOTONIC_NS
    assert (raw.groups[0].name, raw.groups[0].rank, raw.groups[0].num_ranks) == ("data", 1, 4)
    assert raw.groups[0].nonce == b"n" * 16
    (span,) = raw.spans
    assert (span.number, span.start_ns, span.end_ns, span.place, span.peer) == (9, 100, 350, "train.py:61", -1)
    assert (span.call.operation, span.call.dtype, span.call.op, span.call.root) == ("reduce", "bfloat16", "max", 2)
    assert (span.call.shape, span.call.shape_text(), span.call.size_bytes) == ((2, 3), "(2, 3)", 12)
    assert span.call.is_async
    assert span.call.tag is None


def test_a_message_has_tag_and_peer_but_no_root(tmp_path: Path) -> None:
    rank = RawRank(0).group().call("recv", 1, 5, 6, peer=1, tag=42, shape=(8,), size_bytes=32, root=-1)
    (span,) = read_raw_file(rank.write(tmp_path)).spans
    assert (span.call.tag, span.peer, span.call.root, span.is_message) == (42, 1, None, True)
    assert span.call.shape_text() == "(8,)"


def test_a_barrier_has_no_dtype_and_a_broadcast_no_reduction(tmp_path: Path) -> None:
    rank = RawRank(0).group().call("barrier", 1, 5, 6).call("broadcast", 2, 7, 8, root=1)
    barrier, broadcast = read_raw_file(rank.write(tmp_path)).spans
    assert (barrier.call.dtype, barrier.call.op, barrier.call.root) == ("", "", None)
    assert (broadcast.call.op, broadcast.call.root) == ("", 1)


def test_more_than_six_dimensions_are_hinted_at(tmp_path: Path) -> None:
    rank = RawRank(0).group().call("all_reduce", 1, 5, 6, shape=(1, 2, 3, 4, 5, 6, 7))
    (span,) = read_raw_file(rank.write(tmp_path)).spans
    assert span.call.shape_text() == "(1, 2, 3, 4, 5, 6, ...)"


def test_a_location_counts_from_where_it_stands(tmp_path: Path) -> None:
    rank = RawRank(0).group().group(1, "other").location(0, "a.py:1").location(0, "other.py:1", group=1)
    rank.call("barrier", 1, 1, 2, location=0).location(0, "b.py:2").call("barrier", 2, 3, 4, location=0)
    rank.call("barrier", 1, 5, 6, location=0, group=1).call("barrier", 3, 7, 8, location=5)
    places = [span.place for span in read_raw_file(rank.write(tmp_path)).spans]
    assert places == ["a.py:1", "b.py:2", "other.py:1", ""]


def test_zeros_end_what_was_written(tmp_path: Path) -> None:
    rank = RawRank(0).group().call("barrier", 1, 1, 2)
    raw = read_raw_file(rank.write(tmp_path, tail=b"\0" * 128 + b"\xff" * 300))
    assert len(raw.spans) == 1
    assert not raw.is_cut


def test_a_file_cut_in_a_record_is_read_up_to_there(tmp_path: Path) -> None:
    rank = RawRank(0).group().call("barrier", 1, 1, 2).call("barrier", 2, 3, 4)
    path = rank.write(tmp_path, tail=b"")
    path.write_bytes(path.read_bytes()[:-50])
    raw = read_raw_file(path)
    assert [span.number for span in raw.spans] == [1]
    assert raw.is_cut


@pytest.mark.parametrize("content", [b"", b"\0" * 4096])
def test_a_process_that_wrote_nothing_is_known_by_its_file_name(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "rank-5-812.raw"
    path.write_bytes(content)
    raw = read_raw_file(path)
    assert raw.is_empty
    assert (raw.header.rank, raw.header.pid) == (5, 812)


def test_text_that_is_not_utf8_is_shown_with_a_mark(tmp_path: Path) -> None:
    rank = RawRank(0).group().call("barrier", 1, 1, 2, place="ä.py:1")
    content = rank.content().replace("ä".encode(), b"\xc3\0")
    path = tmp_path / "rank-0-1.raw"
    path.write_bytes(content)
    assert read_raw_file(path).spans[0].place == "\N{REPLACEMENT CHARACTER}"


def _with_record(record: bytes) -> bytes:
    return RawRank(0).group().content() + record.ljust(128, b"\0")


def _span(**changes: int) -> bytes:
    values = {"kind": 4, "group": 0, "start_ns": 1, "end_ns": 2, "what": 9, "peer": -1} | changes
    return struct.pack("<IIQqqQQQIIii6Q", values["kind"], values["group"], 1, values["start_ns"], values["end_ns"],
                       values["what"], 0, 0, 0, 0, values["peer"], 0, *[0] * 6)  # fmt: skip


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"hello", "record 0: there is no whole header"),
        (b"hello world" * 50, "record 0: it is of kind 1819043176, not a header"),
        (RawRank(-7).content(), "record 0: the header makes no sense"),
        (RawRank(0, version=2).content(), "was recorded in format 2, this phalanx reads 1"),
        (_with_record(struct.pack("<I", 99)), "record 2: nothing is of kind 99"),
        (_with_record(RawRank(0).records[0]), "record 2: nothing is of kind 1"),
        (_with_record(struct.pack("<IIIi", 2, 1, 2, 2)), "record 2: rank 2 of a group of 2"),
        (_with_record(_span(group=4)), "record 2: it belongs to group 4, which was not recorded"),
        (_with_record(_span(end_ns=-9)), "record 2: it ends 10 ns before it starts"),
        (_with_record(_span(what=13)), "record 2: no operation, dtype or reduction has these numbers: 0xd"),
        (_with_record(_span(what=1 | 27 << 8)), "has these numbers: 0x1b01"),
        (_with_record(_span(what=10)), "record 2: send in a record of kind 4"),
        (_with_record(_span(kind=5, what=9)), "record 2: barrier in a record of kind 5"),
        (_with_record(_span(kind=5, what=10, peer=2)), "record 2: a message of rank 2 in a group of 2"),
    ],
)
def test_a_damaged_file_is_named_with_what_is_wrong(tmp_path: Path, content: bytes, problem: str) -> None:
    path = tmp_path / "rank-0-1.raw"
    path.write_bytes(content)
    with pytest.raises(UsageError) as caught:
        read_raw_file(path)
    first, advice = str(caught.value).split("\n")
    assert str(path) in first
    assert problem in first
    assert advice.startswith("  do       ")


def test_a_file_that_can_not_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"gone\.raw can't be read: No such file"):
        read_raw_file(tmp_path / "gone.raw")
