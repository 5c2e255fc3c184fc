"""What each rank did in each group, in the words of torch's flight recorder.

torch's analyser expects every member of a group in every operation, and does not know tags. So the messages from one
rank to another with one tag form a group of these two ranks. Then the analyser can tell which side is missing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from phalanx.diagnosis.observation import Observation
from phalanx.diagnosis.views import GroupView
from phalanx.diagnosis.waits import key_of, world_of
from phalanx.engine.facts import EntryFacts

# The analyser refuses names of backends that it does not know.
_BACKEND = "nccl"


@dataclass(frozen=True)
class Part:
    """What one rank did in one group, or with one peer.

    Attributes:
        rank: Its number in the world.
        group: Name and description.
        members: All ranks that take part, by their numbers in the world.
        entry: What the journal says.
        name: The name that the analyser shows.
        number: The sequence number, the same on all ranks that take part.
        sizes: The sizes of input and output.
    """

    rank: int
    group: tuple[str, str]
    members: tuple[int, ...]
    entry: EntryFacts
    name: str
    number: int
    sizes: tuple[list[list[int]], list[list[int]]]


def find_parts(seen: Observation, members: Sequence[Sequence[int]]) -> Iterator[Part]:
    """Return all operations in the journals that the analyser can compare."""
    for index, (view, numbers) in enumerate(zip(seen.groups, members, strict=True)):
        yield from _collectives(view, str(index), numbers)
        yield from _messages(view, str(index), numbers)


def number_members(seen: Observation) -> list[tuple[int, ...]]:
    """Return the members of each group as ranks of the world; ranks that have not joined get the numbers left over."""
    world = world_of(seen.groups, seen.job.pids, seen.job.first_rank)
    numbers = set(world.values())
    beyond = max(numbers, default=-1) + 1
    numbered = []
    for view in seen.groups:
        known = {row.rank: world[key_of(row)] for row in view.rows if key_of(row) in world}
        # In a group of all ranks, a rank that has not joined has the number that no other member has.
        is_whole = view.num_ranks >= len(world)
        taken = set(known.values())
        following = max(taken, default=-1) + 1 if is_whole else beyond
        for rank in range(view.num_ranks):
            if rank not in known:
                known[rank] = rank if rank not in taken and (is_whole or rank not in numbers) else following
                taken.add(known[rank])
                following = max(following, known[rank] + 1)
        numbered.append(tuple(known[rank] for rank in range(view.num_ranks)))
    return numbered


def _collectives(view: GroupView, name: str, numbers: Sequence[int]) -> Iterator[Part]:
    records = [each.operations for each in view.records]
    # Earlier operations are no longer in the journals of all ranks.
    first = max((entries[0].seq for entries in records if entries), default=1)
    shapes: dict[tuple[int, str, int], list[int]] = {}
    for rank, entries in zip(numbers, records, strict=True):
        for entry in entries:
            if entry.seq >= first:
                # phalanx accepts different shapes of the same size; the analyser does not.
                same = (entry.seq, entry.operation, entry.count)
                shape = shapes.setdefault(same, list(entry.shape))
                kind = f"{_BACKEND}:{entry.operation}"
                sizes = _sizes(entry.operation, shape, len(numbers))
                yield Part(rank, (name, view.name), tuple(numbers), entry, kind, entry.seq, sizes)


def _sizes(operation: str, shape: list[int], num_ranks: int) -> tuple[list[list[int]], list[list[int]]]:
    if operation == "barrier":
        return [], []
    together = [num_ranks, *shape]
    return {
        "all_gather": ([shape], [together]),
        "gather": ([shape], [together]),
        "scatter": ([together], [shape]),
        "reduce_scatter": ([together], [shape]),
    }.get(operation, ([shape], [shape]))


def _messages(view: GroupView, name: str, numbers: Sequence[int]) -> Iterator[Part]:
    """Number the messages of each pair and tag, without those to itself, to other hosts, or open and from any rank."""
    records = [each.messages for each in view.records]
    # Without the oldest messages, it is unknown which finished ones belong together.
    is_whole = all(entries[0].seq == 1 for entries in records if entries)
    for here, entries in enumerate(records):
        counts: dict[tuple[int, int, int], int] = {}
        for entry in entries:
            there = entry.peer
            if there < 0 or there == here or (entry.end_ns and not is_whole):
                continue
            pair = (here, there) if entry.operation == "send" else (there, here)
            channel = (*pair, entry.count)
            counts[channel] = counts.get(channel, 0) + 1
            yield _message(view, name, numbers, numbers[here], entry, channel, counts[channel])


def _message(
    view: GroupView,
    name: str,
    numbers: Sequence[int],
    rank: int,
    entry: EntryFacts,
    channel: tuple[int, int, int],
    number: int,
) -> Part:
    source, destination = numbers[channel[0]], numbers[channel[1]]
    members = tuple(sorted((source, destination)))
    description = f"{view.name}: messages from rank {source} to rank {destination}, tag {channel[2]}"
    group = (f"{name}:{source}->{destination}:{channel[2]}", description)
    from_, to = members.index(source), members.index(destination)
    shape = [list(entry.shape)]
    is_send = entry.operation == "send"
    kind = f"{_BACKEND}:send {from_}->{to}" if is_send else f"{_BACKEND}:recv {to}<-{from_}"
    return Part(rank, group, members, entry, kind, number, (shape, shape))
