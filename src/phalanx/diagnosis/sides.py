"""The sides of a mismatch: which ranks made the same call, and which side is right.

A side is right if it has more than half of all ranks of the group. When a mismatch is noticed, some ranks may not have
come yet, so no side may be known to be right. Later, a launcher puts together what all ranks know.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from typing import TypeAlias

Sides: TypeAlias = tuple[tuple[int, ...], ...]


def sides_of(calls: Mapping[int, Hashable]) -> Sides:
    """Return the ranks that made the same call, for each call."""
    by_call: dict[Hashable, list[int]] = {}
    for rank in sorted(calls):
        by_call.setdefault(calls[rank], []).append(rank)
    return tuple(sorted(map(tuple, by_call.values())))


def find_majority(sides: Sides, num_ranks: int) -> tuple[int, ...]:
    """Return the side with more than half of all ranks of the group; () if no side is known to have them."""
    return next((side for side in sides if 2 * len(side) > num_ranks), ())


def find_minority(sides: Sides, num_ranks: int) -> tuple[int, ...]:
    """Return the ranks of the other sides; () if no side is known to be right."""
    majority = find_majority(sides, num_ranks)
    return tuple(sorted(rank for side in sides if majority and side != majority for rank in side))


def merge_sides(reports: Iterable[Sides]) -> Sides:
    """Put together what several ranks know: two sides with a rank in common are one side."""
    merged: list[set[int]] = []
    for side in (set(side) for sides in reports for side in sides):
        common = [other for other in merged if other & side]
        merged = [other for other in merged if not other & side]
        merged.append(side.union(*common))
    return tuple(sorted(tuple(sorted(side)) for side in merged))


def describe_doubt(sides: Sides, num_ranks: int) -> str:
    """Say why it is not known who is right; say nothing if it is known, or if there are only two ranks."""
    if find_majority(sides, num_ranks) or num_ranks == 2:
        return ""
    num_known = sum(map(len, sides))
    if num_known < num_ranks:
        return f"who is right: the calls of only {num_known} of {num_ranks} ranks are known"
    return "who is right: no call was made by more than half of the ranks"
