"""Which rank waits for which, over all groups of a job, and whether ranks wait in a circle.

Pure functions over snapshots: no waiting, no I/O, so every case can be tested from literals.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from phalanx.diagnosis import formatting
from phalanx.diagnosis.views import GroupView
from phalanx.engine.facts import EntryFacts, RankFacts, far_rank

Key = tuple[int, int]  # process, and thread where ranks are threads
World = Mapping[Key, int]

_JUST_S = 0.5  # so that other ranks that look at the same moment still see it
# How many ranks all waits name together: as many as in the largest group if all wait for all. Hostile groups
# could otherwise fill the memory.
MOST_AWAITED = 1 << 20


@dataclass(frozen=True)
class Wait:
    """A rank that waits for other ranks.

    Attributes:
        key: The rank's process or thread.
        rank: Its number in the world.
        keys: The ranks that it waits for.
        waits_for: Their numbers in the world.
        entry: The operation that it waits in; its root is a rank of the world.
        group: The name of the group.
        is_any: Whether one of them is enough.
        nonce: Tells the group from others of its name.
    """

    key: Key
    rank: int
    keys: tuple[Key, ...]
    waits_for: tuple[int, ...]
    entry: EntryFacts
    group: str
    is_any: bool = False
    nonce: str = ""

    @property
    def text(self) -> str:
        """The operation and where in the program it was called."""
        return formatting.operation(self.entry)

    @property
    def is_async(self) -> bool:
        """Whether the operation is asynchronous, so that the rank may be doing something else."""
        return self.entry.is_async

    @property
    def start_ns(self) -> int:
        """When the wait began."""
        return self.entry.start_ns


def key_of(row: RankFacts) -> Key:
    """Return what identifies a rank on this machine."""
    return (row.any_pid, row.thread if row.is_thread else 0)


def world_of(views: Sequence[GroupView], pids: Sequence[int] = (), first_rank: int = 0) -> dict[Key, int]:
    """Number all ranks of a job as its launcher did, or else as its largest group does, with the others after them.

    Args:
        views: The groups.
        pids: The ranks that the launcher has started, in order.
        first_rank: The number of the first of them: other hosts may have lower numbers.
    """
    world: dict[Key, int] = {(pid, 0): rank for rank, pid in enumerate(pids, first_rank) if pid}
    taken = set(world.values())
    following = first_rank + len(pids)  # greater than all numbers that are taken
    for view in sorted(views, key=lambda each: -each.num_ranks):
        for row in view.rows:
            key = key_of(row)
            if key[0] and key not in world:
                world[key] = row.rank if row.rank not in taken else following
                taken.add(world[key])
                following = max(following, world[key] + 1)
    return world


def world_rank(view: GroupView, rank: int, world: World) -> int:
    """Return the number in the world of a member of a group."""
    return world.get(key_of(view.rows[rank]), rank)


def in_world(entry: EntryFacts, view: GroupView, world: World) -> EntryFacts:
    """Return a journal entry whose root, or the other end of its message, is a rank of the world."""
    if not 0 <= entry.root < len(view.rows):
        return entry
    return entry._replace(root=world_rank(view, entry.root, world))


def find_waits(views: Iterable[GroupView], world: World, *, also_broken: bool = False) -> list[Wait]:
    """Return the ranks that wait. For a broken group, return the ranks that waited when it broke, only if asked."""
    return find_most_waits(views, world, also_broken=also_broken)[0]


def find_most_waits(views: Iterable[GroupView], world: World, *, also_broken: bool = False) -> tuple[list[Wait], int]:
    """Do what find_waits() does, and return how many waits it has left out because they name too many ranks."""
    waits: list[Wait] = []
    num_left_out = 0
    room = MOST_AWAITED
    for view in views:
        if view.fault is not None and not also_broken:
            continue
        members = _Members(view, world)
        for row in view.rows:
            entry = _awaited_entry(row, view.fault is not None)
            if entry is not None and room > 0:
                waits.append(members.wait(row, entry))
                room -= len(waits[-1].keys)
            elif entry is not None:
                num_left_out += 1
    return sorted(waits, key=lambda wait: wait.rank), num_left_out


def _awaited_entry(row: RankFacts, is_broken: bool) -> EntryFacts | None:
    if row.state != "present":
        return None
    if row.mail is not None and is_waiting(row.mail, is_broken):
        return row.mail if far_rank(row.mail.root) is None else None  # other hosts are not seen here
    if row.sleeps_for < 0:
        return None
    # Without a collective, the rank is so far ahead that it must wait before it begins.
    return row.entry if row.collective is None else row.collective


class _Members:
    """The ranks of a group, in the order in which they were seen last."""

    def __init__(self, view: GroupView, world: World) -> None:
        self._view = view
        self._world = world
        self._keys = [key_of(row) for row in view.rows]
        self._numbers = [world.get(key, rank) for rank, key in enumerate(self._keys)]
        self._by_arrival = sorted(range(len(view.rows)), key=lambda rank: view.rows[rank].arrived)
        self._arrivals = [view.rows[rank].arrived for rank in self._by_arrival]

    def wait(self, row: RankFacts, entry: EntryFacts) -> Wait:
        """Return the wait of a rank in an operation."""
        peers = self._peers(row, entry)
        return Wait(
            self._keys[row.rank],
            self._numbers[row.rank],
            tuple(self._keys[peer] for peer in peers),
            tuple(self._numbers[peer] for peer in peers),
            in_world(entry, self._view, self._world),
            self._view.name,
            entry is row.mail and entry.root < 0 and len(peers) > 1,
            self._view.nonce,
        )

    def _peers(self, row: RankFacts, entry: EntryFacts) -> list[int]:
        if entry is row.mail:
            return [entry.root] if entry.root >= 0 else [rank for rank in range(len(self._keys)) if rank != row.rank]
        late: list[int] = []
        if row.collective is not None and not entry.is_rooted:
            late = sorted(self._by_arrival[: bisect_left(self._arrivals, entry.seq)])
        return [rank for rank in late if rank != row.rank] or [row.sleeps_for]


def is_waiting(mail: EntryFacts, is_broken: bool) -> bool:
    """Tell whether a rank sleeps for a message, or did until the group broke or until a moment ago."""
    return not mail.end_ns or is_broken or ended_s(mail) < _JUST_S


def ended_s(entry: EntryFacts) -> float:
    """Return how long ago an operation ended."""
    return entry.seconds_ago - (entry.end_ns - entry.start_ns) * 1e-9


def find_cycle(waits: Sequence[Wait]) -> list[Wait]:
    """Return ranks that wait for each other in a circle, each for the next and the last for the first; or none.

    A circle without asynchronous operations is preferred, because all its ranks certainly wait.
    """
    certain = [wait for wait in waits if not wait.is_any]
    return find_circle([wait for wait in certain if not wait.is_async]) or find_circle(certain)


def find_circle(waits: Sequence[Wait]) -> list[Wait]:
    """Return a circle, whatever its operations are; or none."""
    by_key: dict[Key, list[Wait]] = {}
    for wait in waits:
        by_key.setdefault(wait.key, []).append(wait)
    done: set[Key] = set()
    for start in by_key:
        circle = _follow(start, by_key, done)
        if circle:
            return circle
    return []


def _follow(start: Key, by_key: Mapping[Key, list[Wait]], done: set[Key]) -> list[Wait]:
    """Follow the waits until a rank comes a second time; `done` are the ranks from which no circle can be reached."""
    ranks = {start: 0}  # with their places on the path; a list would be searched once for every wait
    path: list[Wait] = []  # each from a rank to the next
    ways = [_ways_from(start, by_key)]
    while ways:
        wait, key = next(ways[-1], (None, start))
        if wait is None:
            ways.pop()
            done.add(ranks.popitem()[0])
            del path[-1:]
        elif key not in by_key or key in done or ranks.get(key) == len(path):
            continue
        elif key in ranks:
            return [*path, wait][ranks[key] :]
        else:
            path.append(wait)
            ranks[key] = len(path)
            ways.append(_ways_from(key, by_key))
    return []


def _ways_from(key: Key, by_key: Mapping[Key, list[Wait]]) -> Iterator[tuple[Wait, Key]]:
    return ((wait, following) for wait in by_key[key] for following in wait.keys)


def describe_cycle(cycle: Sequence[Wait]) -> list[str]:
    """Describe a circle, with one line for each rank in it."""
    following = [*cycle[1:], cycle[0]]
    return [
        f'rank {wait.rank} waits for rank {after.rank} in {wait.text}, group "{wait.group}"'
        for wait, after in zip(cycle, following, strict=True)
    ]
