"""Format times and counts for people."""

from __future__ import annotations

from phalanx.byte_sizes import three_digits


def duration(value_ns: float) -> str:
    """Write a duration with three digits: "12.3 ms"."""
    for unit, size_ns in (("s", 1e9), ("ms", 1e6), ("us", 1e3)):
        if value_ns >= size_ns * 0.9995:
            return f"{three_digits(value_ns / size_ns)} {unit}"
    return f"{value_ns:.0f} ns"


def count(number: int, noun: str) -> str:
    """Write a number with its noun: "1 group", "2,000 groups"."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
