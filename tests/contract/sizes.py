"""Sizes at which something changes inside: what travels with the post, in a slot, in one chunk, in several."""

from __future__ import annotations

KIB = 1024

LIMITS_BYTES = (64, 80, 512, 2 * KIB, 4 * KIB, 64 * KIB, 128 * KIB, 256 * KIB, 512 * KIB, KIB * KIB)


def counts_around_limits(item_bytes: int) -> list[int]:
    """Return element counts: none, one, and one less, the same and one more than each limit."""
    counts = {0, 1, 2}
    for limit in LIMITS_BYTES:
        count = limit // item_bytes
        counts |= {count - 1, count, count + 1}
    return sorted(counts)
