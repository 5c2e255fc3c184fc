"""Readers of group memory, flight records, traces, stacks and meeting messages, fed with arbitrary and changed bytes.

They may refuse, in words, or read on. They may neither crash nor take long.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pickle
import random
import secrets
import socket
import struct
import threading
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import phalanx
from phalanx.cli.timeline import timeline
from phalanx.diagnosis.observation import describe, from_json, read_record, to_json
from phalanx.diagnosis.report import render
from phalanx.diagnosis.stacks import parse_stacks
from phalanx.diagnosis.views import JobView
from phalanx.engine import GroupSegment, create_group_segment, create_symmetric_segment
from phalanx.errors import UsageError
from phalanx.groups.shared_memory import SharedMemoryGroup
from phalanx.launch.connection import FrameReader, connected_pair
from phalanx.launch.meeting import Gathering, address_of, meet
from phalanx.launch.world import open_world
from phalanx.timeline.write import write_timeline
from tests.diagnosis.observations import fault, group, observation, row, waiting
from tests.timeline.raw_files import RawRank

_QUICK = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
_WORDS = st.one_of(
    st.integers(0, 2**64 - 1),
    st.sampled_from([0, 1, 2, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 2, 2**64 - 1]),
)


def _attach(content: bytes, size: int) -> GroupSegment:
    """Attach memory with this content as an observer does."""
    memory = os.memfd_create("phalanx:fuzz", os.MFD_ALLOW_SEALING)
    try:
        os.truncate(memory, size)
        os.pwrite(memory, content, 0)
        fcntl.fcntl(memory, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
        return GroupSegment.attach(memory, is_writable=False)
    finally:
        os.close(memory)


def _valid_group(num_ranks: int) -> tuple[bytes, int]:
    made = create_group_segment("fuzz", num_ranks, crowd=num_ranks)
    content = os.pread(made.descriptor, 1 << 19, 0)
    size = made.size_bytes
    made.close_descriptor()
    return content, size


def _look_at(seen: GroupSegment) -> None:
    """Read everything, as text, and as a flight record that is read again."""
    observed = describe([seen], [os.getpid()], JobView(), with_stacks=False)
    render(observed)
    render(from_json(to_json(observed), "fuzz"))


@_QUICK
@given(
    num_ranks=st.integers(1, 3), changes=st.lists(st.tuples(st.integers(0, 2**19), _WORDS), max_size=40), seed=_WORDS
)
def test_a_group_in_which_any_words_are_changed_is_refused_or_read(
    num_ranks: int, changes: list[tuple[int, int]], seed: int
) -> None:
    content, size = _valid_group(num_ranks)
    changed = bytearray(content)
    numbers = random.Random(seed)
    for offset, word in changes:
        struct.pack_into("<Q", changed, min(offset // 8 * 8, len(changed) - 8), word)
    for _ in range(numbers.choice([0, 0, 2000])):  # so many that every table has some
        place = numbers.randrange(4096 // 8, len(changed) // 8)
        struct.pack_into("<Q", changed, place * 8, numbers.getrandbits(numbers.choice([1, 2, 8, 32, 64])))
    try:
        seen = _attach(bytes(changed), size)
    except RuntimeError:
        return
    _look_at(seen)


@_QUICK
@given(content=st.binary(max_size=4096), size=st.integers(0, 1 << 16), is_magic_right=st.booleans())
def test_memory_of_arbitrary_bytes_is_refused(content: bytes, size: int, is_magic_right: bool) -> None:
    magic = _valid_group(1)[0][:8]
    with pytest.raises((RuntimeError, MemoryError)):
        _attach(magic + content if is_magic_right else content, max(size, 8))


@pytest.mark.parametrize("num_ranks", [0, 1025, 2**31, 2**32 - 1])
def test_a_group_of_an_impossible_number_of_ranks_is_refused(num_ranks: int) -> None:
    content, size = _valid_group(2)
    changed = bytearray(content)
    struct.pack_into("<I", changed, 8, num_ranks)
    with pytest.raises(RuntimeError, match="not a segment"):
        _attach(bytes(changed), size)


def test_texts_that_are_no_characters_are_shown_with_replacements() -> None:
    made = create_group_segment("name", 1, crowd=1)
    made.fail(0, "reason")
    content, size = os.pread(made.descriptor, 1 << 19, 0), made.size_bytes
    made.close_descriptor()
    seen = _attach(content.replace(b"name", b"n\xff\xe6\xbc").replace(b"reason", b"reas\xe6\xbc"), size)
    fault = seen.fault()
    assert seen.name == "n\ufffd\ufffd"
    assert fault is not None
    assert fault.text == "reas\ufffd"
    _look_at(seen)


@pytest.mark.slow
def test_a_group_that_is_rewritten_while_it_is_read_is_read() -> None:
    made = create_group_segment("fuzz", 2, crowd=2)
    seen = GroupSegment.attach(made.descriptor, is_writable=False)
    size = len(_valid_group(2)[0])
    stop = threading.Event()

    def rewrite() -> None:
        numbers = random.Random(7)
        while not stop.is_set():
            os.pwrite(made.descriptor, numbers.randbytes(8), numbers.randrange(0, size // 8) * 8)

    writer = threading.Thread(target=rewrite)
    writer.start()
    try:
        for _ in range(30):
            _look_at(seen)
    finally:
        stop.set()
        writer.join()
    made.close_descriptor()


_JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=20)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=8), inner, max_size=3)),
    max_leaves=5,
)


def _places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the way to everything in plain data."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path] * bool(path) + [found for key, each in inner for found in _places(each, (*path, key))]


@_QUICK
@given(data=st.data())
def test_a_flight_record_in_which_anything_is_changed_is_refused_or_shown(data: st.DataObject) -> None:
    record = json.loads(to_json(observation(group(row(0), waiting(1, 0), fault=fault("timeout")))))
    places = _places(record)
    for _ in range(data.draw(st.integers(1, 3))):
        path = data.draw(st.sampled_from(places))
        target = record
        try:
            for key in path[:-1]:
                target = target[key]
            target[path[-1]] = data.draw(_JSON)
        except (KeyError, IndexError, TypeError):  # changed before
            continue
    try:
        seen = from_json(json.dumps(record), "fuzz")
    except UsageError:
        return
    render(seen)


@_QUICK
@given(text=st.one_of(st.text(), st.binary().map(lambda content: content.decode(errors="replace"))))
def test_text_that_is_no_flight_record_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="not a flight record"):
        from_json(text, "fuzz")


@pytest.mark.parametrize("text", ["[" * 200_000, '{"format":' * 100_000, "1" * 10_000, '"\\ud800"'])
def test_a_flight_record_that_is_deep_or_long_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="not a flight record"):
        from_json(text, "fuzz")


@pytest.mark.parametrize(
    "number", [10**400, -(10**400), 2**64, float("nan"), float("inf")], ids=["huge", "low", "65 bits", "nan", "inf"]
)
def test_a_flight_record_with_a_number_that_no_clock_shows_is_refused_or_shown(number: float) -> None:
    whole = json.loads(to_json(observation(group(row(0), waiting(1, 0), fault=fault("timeout")))))
    for path in _places(whole):
        record = json.loads(json.dumps(whole))
        target = record
        for key in path[:-1]:
            target = target[key]
        if isinstance(target[path[-1]], int | float):
            target[path[-1]] = number
            with contextlib.suppress(UsageError):
                render(from_json(json.dumps(record), "fuzz"))


def test_a_flight_record_whose_version_is_no_number_is_refused_without_showing_it() -> None:
    record = {**json.loads(to_json(observation(group(row(0))))), "version": "\x1b[2J"}
    with pytest.raises(UsageError, match=r"^fuzz: not a flight record of phalanx$"):
        from_json(json.dumps(record), "fuzz")


def test_a_pipe_in_the_place_of_a_file_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "rank-0-1.raw")
    with pytest.raises(UsageError, match="not a plain file"):
        read_record(tmp_path / "rank-0-1.raw")
    with pytest.raises(UsageError, match="not a plain file"):
        write_timeline(tmp_path)


def test_a_file_of_endless_zeros_is_read_no_further_than_need_be(tmp_path: Path) -> None:
    path = tmp_path / "rank-0-1000.raw"
    path.write_bytes(_trace())
    os.truncate(path, 1 << 40)
    assert write_timeline(tmp_path).num_spans == 5
    with pytest.raises(UsageError, match="more than 1024 MiB"):
        read_record(path)


def test_names_in_a_trace_do_not_steer_the_terminal(tmp_path: Path) -> None:
    rank = RawRank(0).group(name="a\x1b[2J").call("all_reduce", 1, 100, 0, place="train\x1b[2J.py:7")
    (tmp_path / "rank-0-1000.raw").write_bytes(b"".join(record.ljust(128, b"\0") for record in rank.records))
    shown = CliRunner().invoke(timeline, [str(tmp_path)], color=True)
    assert shown.exit_code == 0
    assert "a\\x1b[2J" in shown.output
    (tmp_path / "rank-1-\x1b[2J.raw").write_bytes(b"no trace")
    refused = CliRunner().invoke(timeline, [str(tmp_path)], color=True)
    assert "rank-1-\\x1b[2J.raw is damaged" in refused.output
    assert "\x1b" not in shown.output + refused.output


def _trace() -> bytes:
    rank = RawRank(0).group().location(1, "train.py:3")
    for number in range(1, 6):
        rank.call("all_reduce", number, number * 100, number * 100 + 50, shape=(4,), size_bytes=16, place="train.py:7")
    return b"".join(record.ljust(128, b"\0") for record in rank.records)


@settings(_QUICK, max_examples=150)
@given(changes=st.lists(st.tuples(st.integers(0, 2**16), _WORDS), max_size=6), cut=st.integers(0, 2000))
def test_a_trace_in_which_anything_is_changed_is_refused_or_drawn(
    tmp_path_factory: pytest.TempPathFactory, changes: list[tuple[int, int]], cut: int
) -> None:
    content = bytearray(_trace())
    for offset, word in changes:
        struct.pack_into("<Q", content, offset % (len(content) // 8) * 8, word)
    folder = tmp_path_factory.mktemp("trace")
    (folder / "rank-0-1000.raw").write_bytes(content[: len(content) - cut])
    try:
        write_timeline(folder)
    except UsageError:
        return


@_QUICK
@given(text=st.text())
def test_stacks_may_be_any_text(text: str) -> None:
    parse_stacks(text)
    parse_stacks(f'Thread 0x{"f" * 99} (most recent call first):\n  File "{text}", line {"9" * 5000} in f\n{text}')


@_QUICK
@given(parts=st.lists(st.binary(min_size=1, max_size=64), max_size=8))
def test_a_reader_of_frames_waits_for_whole_ones_and_keeps_no_more_than_came(parts: list[bytes]) -> None:
    reader, (ours, theirs) = FrameReader(), connected_pair()
    try:
        for part in parts:
            theirs.stream.sendall(part)
            with contextlib.suppress(OSError):  # the frame says that descriptors come with it, and none do
                frame = reader.read(ours.stream)
                assert frame is None or len(frame[0]) <= sum(map(len, parts))
        assert len(reader._bytes) <= sum(map(len, parts))
    finally:
        ours.close()
        theirs.close()


@pytest.mark.slow
def test_a_host_of_a_meeting_takes_no_notice_of_who_speaks_otherwise() -> None:
    name = f"a test|{secrets.token_hex(8)}"
    gathering = Gathering(
        name=name,
        is_complete=lambda records: len(records) == 2,
        order=sorted,
        create=lambda records: create_symmetric_segment("test", len(records), 10),
        describe_missing=lambda records: "somebody",
        timeout_s=30.0,
    )
    outcomes: list[Any] = []
    host = threading.Thread(target=lambda: outcomes.append(meet(gathering, 0, lambda outcome: outcome)))
    host.start()
    while address_of(name)[1:].decode() not in Path("/proc/net/unix").read_text():
        assert host.is_alive()
    numbers = random.Random(3)
    whole = pickle.dumps((0, list(range(100))))
    for content in [numbers.randbytes(50) for _ in range(20)] + [whole[:cut] for cut in range(1, 40)] + [b"\x80\x05."]:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as stranger:
            stranger.connect(address_of(name))
            stranger.send(content)
    outcomes.append(meet(gathering, 1, lambda outcome: outcome))
    host.join(30)
    assert sorted(outcome.position for outcome in outcomes) == [0, 1]
    for outcome in outcomes:
        os.close(outcome.descriptor)


@pytest.mark.parametrize("rank", [-1, 1, 1 << 20])
def test_a_rank_outside_the_group_is_refused(rank: int) -> None:
    with phalanx.connect() as group:
        assert isinstance(group, SharedMemoryGroup)
        with pytest.raises(IndexError, match="rank outside the group"):
            group.entry(rank, 1)
        with pytest.raises(IndexError, match="rank outside the group"):
            group.records(rank)


@pytest.mark.ranks(1)
@pytest.mark.parametrize("outside", [-1, 1, 1 << 20])
def test_a_rank_outside_a_segment_is_refused(outside: int) -> None:
    with open_world(1) as segment:
        with pytest.raises(IndexError, match="rank outside the group"):
            segment.records(outside)
        with pytest.raises(IndexError, match="rank outside the group"):
            segment.launched(outside, 1)
        with pytest.raises(IndexError, match="rank outside the group"):
            segment.declare_dead(outside, 1)
