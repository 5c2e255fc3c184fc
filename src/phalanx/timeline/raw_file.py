"""Read the file that one process recorded: 128-byte records that the engine writes while ranks run.

The process may have been killed at any moment, so a missing end is not an error. All records in the file must be valid.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from phalanx.engine import MAX_RANKS
from phalanx.errors import UsageError
from phalanx.plain_files import open_plain_file
from phalanx.timeline.calls import Call, decode_call

RECORD_BYTES = 128
VERSION = 1
END, HEADER, GROUP, LOCATION, COLLECTIVE, MESSAGE = range(6)

_HEADER = struct.Struct("<IIIiqQ64s")
_GROUP = struct.Struct("<IIIi16s64s")
_LOCATION = struct.Struct("<IIII112s")
_SPAN = struct.Struct("<IIQqqQQQIIii6Q")
_KIND = struct.Struct("<I")
_WHAT = slice(32, 56)  # what, count, size_bytes
_FLAGS_AND_SHAPE = (slice(60, 64), slice(72, 120))
_FILE_NAME = re.compile(r"rank-(-?\d+)-(\d+)\.raw")


@dataclass(frozen=True, slots=True)
class Header:
    """Which process recorded. `rank` is -1 if the process did not know its rank."""

    pid: int
    rank: int
    unix_minus_monotonic_ns: int
    is_truncated: bool
    host: str


@dataclass(frozen=True, slots=True)
class RawGroup:
    """A group as one of its ranks sees it. The nonce is the same on all its ranks."""

    nonce: bytes
    name: str
    rank: int
    num_ranks: int


@dataclass(frozen=True, slots=True)
class RawSpan:
    """One call of one rank. `end_ns` is 0 if the call never returned; `peer` is a rank of the group, or -1."""

    group: int
    number: int
    start_ns: int
    end_ns: int
    call: Call
    place: str
    peer: int
    is_message: bool


@dataclass(slots=True)
class RawFile:
    """Everything in one file.

    Attributes:
        path: The file.
        header: Which process recorded.
        groups: By their index in this file.
        spans: In the order in which they ended.
        is_cut: Whether the file ends in the middle of a record.
        is_empty: Whether the process ended before it wrote its header; then the header is made from the file's name.
    """

    path: Path
    header: Header
    groups: dict[int, RawGroup] = field(default_factory=dict)
    spans: list[RawSpan] = field(default_factory=list)
    is_cut: bool = False
    is_empty: bool = False


def read_raw_file(path: Path) -> RawFile:
    """Read one file.

    Raises:
        UsageError: The file can't be read, or phalanx did not record it.
    """
    try:
        with open_plain_file(path) as file:
            return _read_records(path, iter(lambda: file.read(RECORD_BYTES), b""))
    except OSError as error:
        raise UsageError(f"{path} can't be read: {error.strerror}") from error


def _read_records(path: Path, records: Iterator[bytes]) -> RawFile:
    header = next(records, b"")
    if not any(header):
        return RawFile(path, _header_from_name(path), is_empty=True)
    if len(header) < RECORD_BYTES:
        raise _damaged(path, 0, "there is no whole header")
    raw = RawFile(path, _read_header(path, header))
    reader = _Reader(raw)
    for number, record in enumerate(records, 1):
        if len(record) < RECORD_BYTES:
            raw.is_cut = any(record)
            break
        (kind,) = _KIND.unpack_from(record)
        if kind == END:
            return raw
        try:
            reader.read(kind, record)
        except _BadRecord as error:
            raise _damaged(path, number, str(error)) from error
    return raw


class _BadRecord(Exception):
    """What is wrong with a record; never raised outside this module."""


def _damaged(path: Path, number: int, problem: str) -> UsageError:
    return UsageError(
        f"{path} is damaged or not a recording of phalanx: record {number}: {problem}"
        "\n  do       move this file away and make the timeline of the other ranks, or record again"
    )


def _header_from_name(path: Path) -> Header:
    match = _FILE_NAME.fullmatch(path.name)
    rank, pid = (int(match[1]), int(match[2])) if match else (-1, 0)
    return Header(pid=pid, rank=max(rank, -1), unix_minus_monotonic_ns=0, is_truncated=False, host="")


def _read_header(path: Path, record: bytes) -> Header:
    kind, version, pid, rank, offset_ns, is_truncated, host = _HEADER.unpack_from(record)
    if kind != HEADER:
        raise _damaged(path, 0, f"it is of kind {kind}, not a header")
    if version != VERSION:
        raise UsageError(
            f"{path} was recorded in format {version}, this phalanx reads {VERSION}"
            "\n  do       make the timeline with the phalanx that recorded it"
        )
    if rank < -1 or is_truncated > 1:
        raise _damaged(path, 0, "the header makes no sense")
    return Header(pid, rank, offset_ns, bool(is_truncated), _text(host))


def _text(padded: bytes) -> str:
    return padded.split(b"\0", 1)[0].decode("utf-8", "replace")


class _Reader:
    """Reads records in order, because they refer to groups and locations that came before."""

    def __init__(self, raw: RawFile) -> None:
        self._raw = raw
        self._places: dict[tuple[int, int], str] = {}
        self._calls: dict[bytes, Call] = {}
        self._readers: dict[int, Callable[[bytes], None]] = {
            GROUP: self._read_group,
            LOCATION: self._read_location,
            COLLECTIVE: self._read_span,
            MESSAGE: self._read_span,
        }

    def read(self, kind: int, record: bytes) -> None:
        """Take one record.

        Raises:
            _BadRecord: The record is not valid.
        """
        if kind not in self._readers:
            raise _BadRecord(f"nothing is of kind {kind}")
        self._readers[kind](record)

    def _read_group(self, record: bytes) -> None:
        _, index, num_ranks, rank, nonce, name = _GROUP.unpack_from(record)
        if not 0 <= rank < num_ranks <= MAX_RANKS:
            raise _BadRecord(f"rank {rank} of a group of {num_ranks}")
        self._raw.groups[index] = RawGroup(nonce, _text(name), rank, num_ranks)

    def _read_location(self, record: bytes) -> None:
        _, group, index, _, text = _LOCATION.unpack_from(record)
        self._places[group, index] = _text(text)

    def _read_span(self, record: bytes) -> None:
        fields = _SPAN.unpack_from(record)
        kind, group, number, start_ns, end_ns = fields[:5]
        location, peer = fields[8], fields[10]
        known = self._raw.groups.get(group)
        if known is None:
            raise _BadRecord(f"it belongs to group {group}, which was not recorded")
        if end_ns != 0 and end_ns < start_ns:
            raise _BadRecord(f"it ends {start_ns - end_ns} ns before it starts")
        call = self._call(record, fields)
        if call.tag is not None and not -1 <= peer < known.num_ranks:
            raise _BadRecord(f"a message of rank {peer} in a group of {known.num_ranks}")
        place = self._places.get((group, location), "")
        self._raw.spans.append(RawSpan(group, number, start_ns, end_ns, call, place, peer, kind == MESSAGE))

    def _call(self, record: bytes, fields: tuple[int, ...]) -> Call:
        # Programs repeat the same few calls, so decode each of them once.
        key = record[_WHAT] + record[_FLAGS_AND_SHAPE[0]] + record[_FLAGS_AND_SHAPE[1]] + record[:1]
        call = self._calls.get(key)
        if call is None:
            call = self._calls[key] = self._decode(fields)
        return call

    @staticmethod
    def _decode(fields: tuple[int, ...]) -> Call:
        try:
            call = decode_call(fields[5], fields[6], fields[7], fields[9], fields[12:])
        except IndexError as error:
            raise _BadRecord(f"no operation, dtype or reduction has these numbers: {fields[5]:#x}") from error
        is_message = call.operation in ("send", "recv")
        if call.operation != "refused" and is_message != (fields[0] == MESSAGE):
            raise _BadRecord(f"{call.operation} in a record of kind {fields[0]}")
        return call
