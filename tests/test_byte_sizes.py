from __future__ import annotations

import pytest

from phalanx.byte_sizes import format_size, size_in_bytes

_GIB = 1 << 30


@pytest.mark.parametrize(
    ("size", "size_bytes"),
    [("16GiB", 16 * _GIB), ("512MB", 512_000_000), ("1.5 gib", 3 * _GIB // 2), ("1TiB", 1 << 40), (1 << 21, 1 << 21)],
)
def test_sizes_have_units(size: str | int, size_bytes: int) -> None:
    assert size_in_bytes(size, "memory") == size_bytes


@pytest.mark.parametrize(
    ("value_bytes", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1536, "1.50 KiB"),
        (200 << 20, "200 MiB"),
        (2**30, "1.00 GiB"),
        (2**51, "2,048 TiB"),
    ],
)
def test_sizes_are_written_with_three_digits(value_bytes: float, text: str) -> None:
    assert format_size(value_bytes) == text
