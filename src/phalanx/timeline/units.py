"""Times, sizes and counts as people read them."""

from __future__ import annotations


def duration(value_ns: float) -> str:
    """Write a duration with three digits: "12.3 ms"."""
    for unit, size_ns in (("s", 1e9), ("ms", 1e6), ("us", 1e3)):
        if value_ns >= size_ns * 0.9995:
            return f"{_three_digits(value_ns / size_ns)} {unit}"
    return f"{value_ns:.0f} ns"


def size(value_bytes: float) -> str:
    """Write a number of bytes with three digits: "1.50 MiB"."""
    for exponent, unit in ((4, "TiB"), (3, "GiB"), (2, "MiB"), (1, "KiB")):
        if value_bytes >= 1024**exponent:
            return f"{_three_digits(value_bytes / 1024**exponent)} {unit}"
    return f"{value_bytes:.0f} B"


def count(number: int, noun: str) -> str:
    """Write how many: "1 group", "2,000 groups"."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _three_digits(value: float) -> str:
    decimals = 2 if value < 9.995 else 1 if value < 99.95 else 0
    return f"{value:,.{decimals}f}"
