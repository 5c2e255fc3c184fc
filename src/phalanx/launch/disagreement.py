"""Find out which rank is wrong if ranks made different calls, from what all ranks know.

A rank that notices the mismatch does not see the calls of ranks that come later. But each of those knows on which side
it is, and reports it to the launcher.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from phalanx.diagnosis.sides import Sides, find_majority, merge_sides
from phalanx.errors import MismatchError


class Disagreement(NamedTuple):
    """What one rank of a group knows of a mismatch that it took part in.

    Attributes:
        group: The name of the group.
        sequence: The number of the operation.
        num_ranks: The size of the group.
        rank: The rank's number in the group.
        sides: The ranks that made the same call, for each call that is known.
    """

    group: str
    sequence: int
    num_ranks: int
    rank: int
    sides: Sides

    @property
    def operation(self) -> tuple[str, int, int]:
        """The operation in which ranks disagree."""
        return self.group, self.sequence, self.num_ranks

    @property
    def is_decided(self) -> bool:
        """Whether it is known who is right."""
        return bool(find_majority(self.sides, self.num_ranks))

    @property
    def is_right(self) -> bool:
        """Whether more than half of the ranks of the group are known to have made this rank's call."""
        return self.rank in find_majority(self.sides, self.num_ranks)


def read_disagreement(error: BaseException | None) -> Disagreement | None:
    """Return what the error of a rank says about a mismatch; None if the rank took no part in one."""
    if not isinstance(error, MismatchError) or error.rank is None or not error.sequence or not error.num_ranks:
        return None
    if not any(error.rank in side for side in error.sides):
        return None
    return Disagreement(error.group, error.sequence, error.num_ranks, error.rank, error.sides)


def decode_disagreement(facts: Sequence[Any] | None) -> Disagreement | None:
    """Make one from what JSON has left of it."""
    if facts is None:
        return None
    group, sequence, num_ranks, rank, sides = facts
    return Disagreement(group, sequence, num_ranks, rank, tuple(map(tuple, sides)))


def put_together(reports: Sequence[Disagreement | None]) -> list[Disagreement | None]:
    """Return for each rank what all ranks together know of its mismatch."""
    found: dict[tuple[str, int, int], list[Disagreement]] = {}
    for each in reports:
        if each is not None:
            found.setdefault(each.operation, []).append(each)
    merged = {operation: _merge(parts) for operation, parts in found.items()}
    return [None if each is None else each._replace(sides=merged[each.operation] or each.sides) for each in reports]


def _merge(parts: Sequence[Disagreement]) -> Sides:
    if len({part.rank for part in parts}) < len(parts):  # several groups have this name
        return ()
    return merge_sides(part.sides for part in parts)
