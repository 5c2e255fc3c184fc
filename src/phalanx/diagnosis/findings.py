"""Conclusions from an observation: which rank waits for which and since when, and where each rank is in its program."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from phalanx.diagnosis.observation import Observation
from phalanx.diagnosis.stacks import is_launchers, parse_stacks, stack_of
from phalanx.diagnosis.views import GroupView, ProcessView
from phalanx.diagnosis.waits import Key, Wait, find_waits, key_of, world_of, world_rank


@dataclass(frozen=True)
class Findings:
    """What a report is made from.

    Attributes:
        seen: The observation.
        world: The numbers of all ranks.
        waits: The ranks that wait.
    """

    seen: Observation
    world: Mapping[Key, int]
    waits: Sequence[Wait]

    def waited_s(self, wait: Wait) -> float:
        """Return how long a rank has waited."""
        return self.since_s(wait.start_ns)

    def since_s(self, start_ns: int) -> float:
        """Return how long ago something began."""
        return max(0.0, (self.seen.monotonic_ns - start_ns) * 1e-9)

    def process(self, key: Key) -> ProcessView | None:
        """Return the process of a rank, if the observation has it."""
        return next((each for each in self.seen.processes if each.pid == key[0]), None)

    def ranks_of(self, process: ProcessView) -> list[int]:
        """Return the ranks that run in a process."""
        return sorted(rank for key, rank in self.world.items() if key[0] == process.pid)

    def children_of(self, process: ProcessView) -> list[ProcessView]:
        """Return the processes that the ranks in a process have started."""
        return [each for each in self.seen.processes if each.rank_pid == process.pid]

    def member(self, view: GroupView, rank: int) -> int:
        """Return the number in the world of a member of a group."""
        return world_rank(view, rank, self.world)

    def stand(self, key: Key) -> list[str]:
        """Return the stack of a rank, the innermost call first; only calls of the user's code, if there are any."""
        process = self.process(key)
        if process is None or not process.stacks:
            return []
        found = (row.thread for view in self.seen.groups for row in view.rows if key_of(row) == key)
        threads = parse_stacks(process.stacks)
        stack = stack_of(threads, next(found, 0))
        if key[1]:  # a rank that is a thread: other threads of the process say nothing about it
            stack = next((thread for thread in threads if thread.ident == key[1]), None)
        return [] if stack is None else [str(frame) for frame in stack.users_frames()]


def place_of(process: ProcessView) -> str:
    """Return the line of the program that the main thread of a process is at.

    It is empty if the process did not answer, if its program has not begun or has ended, or if it waits for work.
    """
    stack = stack_of(parse_stacks(process.stacks), process.pid)
    frames = () if stack is None or stack.is_idle() else stack.users_frames()
    return "" if not frames or is_launchers(frames[0].file) or frames[0].file.startswith("<") else str(frames[0])


def places_of_children(seen: Observation, pid: int) -> dict[str, list[int]]:
    """Return the lines that processes started by a rank are at, each with their process ids."""
    places: dict[str, list[int]] = {}
    for process in seen.processes:
        if process.rank_pid == pid and (place := place_of(process)):
            places.setdefault(place, []).append(process.pid)
    return places


def find(seen: Observation) -> Findings:
    """Draw the conclusions."""
    world = world_of(seen.groups, seen.job.pids, seen.job.first_rank)
    return Findings(seen, world, find_waits(seen.groups, world))
