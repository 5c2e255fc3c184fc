"""Who waits for whom, over all groups of a job, and whether they wait in a circle.

Pure functions over snapshots: no waiting, no I/O, so every case can be tested from literals.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from phalanx.diagnosis import formatting

View = Mapping[str, Any]
Row = Mapping[str, Any]
Key = tuple[int, int]  # process, and thread where ranks are threads
World = Mapping[Key, int]

_ROOTED = ("broadcast", "reduce", "gather", "scatter")
_JUST_S = 0.5  # others that look at the same moment shall still see it


@dataclass(frozen=True)
class Wait:
    """A rank that can't go on by itself.

    Attributes:
        key: The rank's process or thread.
        rank: Its number in the world.
        keys: Whom it waits for.
        waits_for: Their numbers in the world.
        text: In which operation, and where in the program.
        group: Of which group.
        is_async: Perhaps nobody waits for the operation: the rank may do other things meanwhile.
        is_any: One of them is enough.
        start_ns: Since when.
        nonce: Tells the group from others of its name.
    """

    key: Key
    rank: int
    keys: tuple[Key, ...]
    waits_for: tuple[int, ...]
    text: str
    group: str
    is_async: bool
    is_any: bool = False
    start_ns: int = 0
    nonce: str = ""


def key_of(row: Row) -> Key:
    """Return what tells a rank from all others of this machine."""
    return (row["pid"] or row["launched_pid"], row["thread"] if row["is_thread"] else 0)


def world_of(views: Sequence[View], pids: Sequence[int] = ()) -> dict[Key, int]:
    """Number all ranks of a job: as its launcher did, else as in its largest group, and others after those."""
    world: dict[Key, int] = {(pid, 0): rank for rank, pid in enumerate(pids)}
    taken = set(world.values())
    for view in sorted(views, key=lambda each: -each["num_ranks"]):
        for row in view["rows"]:
            key = key_of(row)
            if key[0] and key not in world:
                world[key] = row["rank"] if row["rank"] not in taken else max(taken) + 1
                taken.add(world[key])
    return world


def world_rank(view: View, rank: int, world: World) -> int:
    """Return the number in the world of a member of a group."""
    return world.get(key_of(view["rows"][rank]), rank)


def in_world(entry: Row, view: View, world: World) -> Row:
    """Return an entry of the journal with its root, or the other side of its message, as rank of the world."""
    root = entry["root"]
    return {**entry, "root": world_rank(view, root, world)} if 0 <= root < len(view["rows"]) else entry


def find_waits(views: Iterable[View], world: World, *, also_broken: bool = False) -> list[Wait]:
    """Return who waits. Nobody does in a broken group any more, unless asked for those who did when it broke."""
    waits = []
    for view in views:
        if view["fault"] is not None and not also_broken:
            continue
        for row in view["rows"]:
            wait = _wait_of(row, view, world)
            if wait is not None:
                waits.append(wait)
    return sorted(waits, key=lambda wait: wait.rank)


def _wait_of(row: Row, view: View, world: World) -> Wait | None:
    if row["state"] != "present":
        return None
    rows = view["rows"]
    mail, entry = row["mail"], row["entry"]
    if mail is not None and is_waiting(mail, view["fault"] is not None):
        peers = [mail["root"]] if mail["root"] >= 0 else [other["rank"] for other in rows if other is not row]
        return _wait(row, peers, mail, view, world, is_any=mail["root"] < 0)
    if row["sleeps_for"] < 0:
        return None
    if entry is not None and row["finished"] < entry["seq"]:
        return _wait(row, _missing(row, entry, rows), entry, view, world)
    if entry is not None:  # so far ahead that it must wait for the others before it begins
        return _wait(row, [row["sleeps_for"]], entry, view, world)
    return None


def is_waiting(mail: Row, is_broken: bool) -> bool:
    """Tell whether a rank sleeps for a message, or did until the group broke; after a timeout of its own it goes on."""
    return not mail["end_ns"] or is_broken or ended_s(mail) < _JUST_S


def ended_s(entry: Row) -> float:
    """Return how long ago an operation ended."""
    took_s: float = (entry["end_ns"] - entry["start_ns"]) * 1e-9
    return float(entry["seconds_ago"]) - took_s


def _missing(row: Row, entry: Row, rows: Sequence[Row]) -> list[int]:
    late = [other["rank"] for other in rows if other["arrived"] < entry["seq"] and other is not row]
    if entry["operation"] in _ROOTED or not late:
        return [row["sleeps_for"]]
    return late


def _wait(row: Row, peers: Sequence[int], entry: Row, view: View, world: World, *, is_any: bool = False) -> Wait:
    keys = tuple(key_of(view["rows"][peer]) for peer in peers)
    key = key_of(row)
    return Wait(
        key,
        world.get(key, row["rank"]),
        keys,
        tuple(world.get(each, peer) for each, peer in zip(keys, peers, strict=True)),
        formatting.operation(in_world(entry, view, world)),
        view["name"],
        entry["is_async"],
        is_any and len(peers) > 1,
        entry["start_ns"],
        view["nonce"],
    )


def find_cycle(waits: Sequence[Wait]) -> list[Wait]:
    """Return ranks that wait for each other in a circle, each for the next and the last for the first; or none.

    One in which everybody is sure to wait is preferred to one through asynchronous operations.
    """
    certain = [wait for wait in waits if not wait.is_any]
    return _find_circle([wait for wait in certain if not wait.is_async]) or _find_circle(certain)


def _find_circle(waits: Sequence[Wait]) -> list[Wait]:
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
    """Go from rank to rank until one comes a second time; `done` are those from whom no way leads to a circle."""
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
    """Write a circle, a line for each rank in it."""
    following = [*cycle[1:], cycle[0]]
    return [
        f'rank {wait.rank} waits for rank {after.rank} in {wait.text}, group "{wait.group}"'
        for wait, after in zip(cycle, following, strict=True)
    ]
