"""Sizes of memory as people write and read them."""

from __future__ import annotations

import re
from typing import Any

from phalanx.errors import UsageError

_SMALLEST_BYTES = 1 << 20
_LARGEST_BYTES = 1 << 50
_UNITS = {"b": 1, **{f"{letter}b": 1000**power for power, letter in enumerate("kmgt", start=1)}}
_UNITS |= {f"{letter}ib": 1024**power for power, letter in enumerate("kmgt", start=1)}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]+)", re.IGNORECASE)


def size_in_bytes(size: Any, name: str) -> int:
    """Turn a size such as "16GiB", "512MB" or a number of bytes into bytes.

    Args:
        size: The size.
        name: What the user calls it.

    Raises:
        UsageError: It is none.
    """
    size_bytes = -1
    if isinstance(size, int) and not isinstance(size, bool):
        size_bytes = size
    elif isinstance(size, str):
        match = _SIZE.fullmatch(size.strip())
        if match and match[2].lower() in _UNITS:
            size_bytes = int(float(match[1]) * _UNITS[match[2].lower()])
    if size_bytes < 0:
        raise UsageError(f'{name} is {size!r}; give a size with its unit, such as "16GiB" or "512MB", or bytes')
    if not _SMALLEST_BYTES <= size_bytes <= _LARGEST_BYTES:
        raise UsageError(f'{name} is {size!r}; give a size from "1MiB" to "1024TiB"')
    return size_bytes


def format_size(value_bytes: float) -> str:
    """Write a number of bytes with three digits: "1.50 MiB"."""
    for exponent, unit in ((4, "TiB"), (3, "GiB"), (2, "MiB"), (1, "KiB")):
        if value_bytes >= 1024**exponent:
            return f"{three_digits(value_bytes / 1024**exponent)} {unit}"
    return f"{value_bytes:.0f} B"


def three_digits(value: float) -> str:
    """Write a number that is at least 1 with three digits."""
    decimals = 2 if value < 9.995 else 1 if value < 99.95 else 0
    return f"{value:,.{decimals}f}"
