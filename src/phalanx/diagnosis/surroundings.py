"""What a rank in trouble can find out about its peers: where they stand, and whether they wait in a circle."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from phalanx.diagnosis.observer import Observer, view_of
from phalanx.diagnosis.processes import is_alive, state_of
from phalanx.diagnosis.stacks import ask_for_stacks, parse_stacks, stack_of
from phalanx.diagnosis.waits import describe_cycle, find_cycle, find_waits, key_of, world_of

_SHOWN_FRAMES = 6


@dataclass(frozen=True)
class Surroundings:
    """What was found out, by rank of the group.

    Attributes:
        stands: Calls that a rank is in, the innermost first.
        waits: The operation of another group that it waits in.
        states: What its process does, where that explains something: "stopped", "gone".
        cycle: Ranks that wait for each other in a circle, a line each.
    """

    stands: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    waits: Mapping[int, str] = field(default_factory=dict)
    states: Mapping[int, str] = field(default_factory=dict)
    cycle: Sequence[str] = ()


def look_around(nonce: bytes, rows: Sequence[Mapping[str, Any]], ranks: Iterable[int]) -> Surroundings:
    """Look at these ranks of a group, and at all groups that its members are in.

    Args:
        nonce: Identifies the group.
        rows: Its members.
        ranks: Those in question.
    """
    here = [row for row in rows if row["is_here"] and key_of(row)[0]]
    wanted = [row for row in here if row["rank"] in set(ranks)]
    observer = Observer(is_writable=False)
    observer.look({key_of(row)[0] for row in here})
    views = [view_of(group) for group in observer.groups]
    waits = find_waits(views, world_of(views), also_broken=True)
    names = {view["name"] for view in views if view["nonce"] == nonce.hex()}
    cycle = find_cycle(waits)
    elsewhere = {
        row["rank"]: f'{wait.text} of group "{wait.group}"'
        for row in wanted
        for wait in waits
        if wait.key == key_of(row) and wait.group not in names
    }
    return Surroundings(_stands(wanted), elsewhere, _states(wanted), describe_cycle(cycle) if cycle else ())


def _states(rows: Iterable[Mapping[str, Any]]) -> dict[int, str]:
    found = {}
    for row in rows:
        pid = key_of(row)[0]
        if state_of(pid) in ("T", "t"):
            found[row["rank"]] = "stopped"
        elif not is_alive(pid):
            found[row["rank"]] = "gone"
    return found


def _stands(rows: Sequence[Mapping[str, Any]]) -> dict[int, tuple[str, ...]]:
    answers = ask_for_stacks(key_of(row)[0] for row in rows)
    stands = {}
    for row in rows:
        stack = stack_of(parse_stacks(answers.get(key_of(row)[0], "")), row["thread"])
        if stack is not None and stack.frames:
            stands[row["rank"]] = tuple(map(str, stack.users_frames()[:_SHOWN_FRAMES]))
    return stands
