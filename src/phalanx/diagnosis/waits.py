"""Which rank waits for which, over all groups of a job, and whether ranks wait in a circle.

Pure functions over snapshots: no waiting, no I/O, so every case can be tested from literals.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from phalanx.diagnosis import formatting
from phalanx.diagnosis.views import GroupView
from phalanx.engine.facts import EntryFacts, RankFacts

Key = tuple[int, int]  # process, and thread where ranks are threads
World = Mapping[Key, int]

_JUST_S = 0.5  # so that other ranks that look at the same moment still see it


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
    world: dict[Key, int] = {(pid, 0): rank for rank, pid in enumerate(pids, first_rank)}
    taken = set(world.values())
    for view in sorted(views, key=lambda each: -each.num_ranks):
        for row in view.rows:
            key = key_of(row)
            if key[0] and key not in world:
                world[key] = row.rank if row.rank not in taken else max(taken) + 1
                taken.add(world[key])
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
    waits = []
    for view in views:
        if view.fault is not None and not also_broken:
            continue
        for row in view.rows:
            wait = _wait_of(row, view, world)
            if wait is not None:
                waits.append(wait)
    return sorted(waits, key=lambda wait: wait.rank)


def _wait_of(row: RankFacts, view: GroupView, world: World) -> Wait | None:
    if row.state != "present":
        return None
    rows = view.rows
    mail, entry = row.mail, row.entry
    if mail is not None and is_waiting(mail, view.fault is not None):
        peers = [mail.root] if mail.root >= 0 else [other.rank for other in rows if other is not row]
        return _wait(row, peers, mail, view, world, is_any=mail.root < 0)
    if row.sleeps_for < 0:
        return None
    if row.collective is not None:
        return _wait(row, _missing(row, row.collective, rows), row.collective, view, world)
    if entry is not None:  # the rank is so far ahead that it must wait before it begins
        return _wait(row, [row.sleeps_for], entry, view, world)
    return None


def is_waiting(mail: EntryFacts, is_broken: bool) -> bool:
    """Tell whether a rank sleeps for a message, or did until the group broke or until a moment ago."""
    return not mail.end_ns or is_broken or ended_s(mail) < _JUST_S


def ended_s(entry: EntryFacts) -> float:
    """Return how long ago an operation ended."""
    return entry.seconds_ago - (entry.end_ns - entry.start_ns) * 1e-9


def _missing(row: RankFacts, entry: EntryFacts, rows: Sequence[RankFacts]) -> list[int]:
    late = [other.rank for other in rows if other.arrived < entry.seq and other is not row]
    if entry.is_rooted or not late:
        return [row.sleeps_for]
    return late


def _wait(
    row: RankFacts, peers: Sequence[int], entry: EntryFacts, view: GroupView, world: World, *, is_any: bool = False
) -> Wait:
    keys = tuple(key_of(view.rows[peer]) for peer in peers)
    key = key_of(row)
    return Wait(
        key,
        world.get(key, row.rank),
        keys,
        tuple(world.get(each, peer) for each, peer in zip(keys, peers, strict=True)),
        in_world(entry, view, world),
        view.name,
        is_any and len(peers) > 1,
        view.nonce,
    )


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
    ranks = [start]
    path: list[Wait] = []  # each from a rank to the next
    ways = [_ways_from(start, by_key)]
    while ways:
        wait, key = next(ways[-1], (None, start))
        if wait is None:
            ways.pop()
            done.add(ranks.pop())
            del path[-1:]
        elif key not in by_key or key in done or key == ranks[-1]:
            continue
        elif key in ranks:
            return [*path, wait][ranks.index(key) :]
        else:
            ranks.append(key)
            path.append(wait)
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
