"""Raw files as the engine writes them, made from literals."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path

from phalanx.timeline.calls import DTYPES, OPERATIONS, REDUCE_OPS

UNIX_MINUS_MONOTONIC_NS = 1_700_000_000_000_000_000


class RawRank:
    """Builds the file of one rank process, record by record."""

    def __init__(
        self, rank: int, *, pid: int | None = None, host: str = "box", version: int = 1, is_truncated: bool = False
    ) -> None:
        self.rank = rank
        self.pid = 1000 + rank if pid is None else pid
        self.records = [
            struct.pack(
                "<IIIiqQ64s", 1, version, self.pid, rank, UNIX_MINUS_MONOTONIC_NS, is_truncated, host.encode()
            )
        ]  # fmt: skip
        self._locations: dict[tuple[int, str], int] = {}

    def group(
        self, index: int = 0, name: str = "world", *, rank: int | None = None, num_ranks: int = 2, nonce: bytes = b""
    ) -> RawRank:
        own = self.rank if rank is None else rank
        nonce = nonce or bytes([index + 1]) * 16
        self.records.append(struct.pack("<IIIi16s64s", 2, index, num_ranks, own, nonce, name.encode()[:64]))
        return self

    def location(self, index: int, text: str, *, group: int = 0) -> RawRank:
        self.records.append(struct.pack("<IIII112s", 3, group, index, 0, text.encode()[:112]))
        return self

    def call(
        self,
        operation: str,
        number: int,
        start_ns: int,
        end_ns: int,
        *,
        group: int = 0,
        shape: Sequence[int] = (),
        dtype: str = "float32",
        op: str = "sum",
        root: int = 0,
        size_bytes: int = 0,
        tag: int = 0,
        peer: int = -1,
        is_async: bool = False,
        place: str = "",
        location: int | None = None,
    ) -> RawRank:
        """Add a collective or a message; `place` makes a location record where it is new."""
        if location is None:
            location = self._location(group, place)
        what = OPERATIONS.index(operation) | DTYPES.index(dtype) << 8 | REDUCE_OPS.index(op) << 16
        what |= len(shape) << 24 | (root & 0xFFFFFFFF) << 32
        is_message = operation in ("send", "recv")
        dims = (*shape, *[0] * 6)[:6]
        self.records.append(
            struct.pack(
                "<IIQqqQQQIIii6Q", 5 if is_message else 4, group, number, start_ns, end_ns, what,
                tag if is_message else size_bytes // 4, size_bytes, location, is_async, peer, 0, *dims,
            )
        )  # fmt: skip
        return self

    def _location(self, group: int, place: str) -> int:
        if not place:
            return 0xFFFF
        if (group, place) not in self._locations:
            self._locations[group, place] = len(self._locations)
            self.location(self._locations[group, place], place, group=group)
        return self._locations[group, place]

    def content(self) -> bytes:
        return b"".join(record.ljust(128, b"\0") for record in self.records)

    def write(self, folder: Path, *, tail: bytes = b"\0" * 1024) -> Path:
        path = folder / f"rank-{self.rank}-{self.pid}.raw"
        path.write_bytes(self.content() + tail)
        return path
