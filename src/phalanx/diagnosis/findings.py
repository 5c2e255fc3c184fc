"""Conclusions from an observation: which rank waits for which and since when, and where each rank is in its program."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from phalanx.diagnosis.observation import Observation
from phalanx.diagnosis.stacks import ThreadStack, is_launchers, parse_stacks, stack_of
from phalanx.diagnosis.views import GroupView, ProcessView
from phalanx.diagnosis.waits import Key, Wait, find_most_waits, key_of, world_of, world_rank


@dataclass(frozen=True)
class Findings:
    """What a report is made from. It finds each thing once, because hostile groups may have very many ranks.

    Attributes:
        seen: The observation.
        world: The numbers of all ranks.
        waits: The ranks that wait.
        num_left_out: How many waits are left out because there are too many.
    """

    seen: Observation
    world: Mapping[Key, int]
    waits: Sequence[Wait]
    num_left_out: int = 0

    def waited_s(self, wait: Wait) -> float:
        """Return how long a rank has waited."""
        return self.since_s(wait.start_ns)

    def since_s(self, start_ns: int) -> float:
        """Return how long ago something began."""
        return max(0.0, (self.seen.monotonic_ns - start_ns) * 1e-9)

    def waits_in(self, view: GroupView) -> Mapping[Key, Wait]:
        """Return the waits of a group, by rank."""
        return self._waits_by_group.get(view.nonce, {})

    def process(self, key: Key) -> ProcessView | None:
        """Return the process of a rank, if the observation has it."""
        return self._processes.get(key[0])

    def keys_of(self, process: ProcessView) -> Sequence[Key]:
        """Return what identifies the ranks that run in a process."""
        return self._keys_by_process.get(process.pid, ())

    def ranks_of(self, process: ProcessView) -> list[int]:
        """Return the ranks that run in a process."""
        return sorted(self.world[key] for key in self.keys_of(process))

    def children_of(self, process: ProcessView) -> Sequence[ProcessView]:
        """Return the processes that the ranks in a process have started."""
        return self._children.get(process.pid, ())

    def member(self, view: GroupView, rank: int) -> int:
        """Return the number in the world of a member of a group."""
        return world_rank(view, rank, self.world)

    def stand(self, key: Key) -> Sequence[str]:
        """Return the stack of a rank, the innermost call first; only calls of the user's code, if there are any."""
        if key not in self._stands:
            stack = self.stack(key)
            self._stands[key] = () if stack is None else tuple(map(str, stack.users_frames()))
        return self._stands[key]

    def stack(self, key: Key) -> ThreadStack | None:
        """Return the stack of a rank, if its process has answered."""
        threads = self._threads_of.get(key[0], {})
        if key[1]:  # a rank that is a thread: other threads of the process say nothing about it
            return threads.get(key[1])
        return threads.get(self._thread_of.get(key, 0)) or stack_of(list(threads.values()), 0)

    @cached_property
    def _stands(self) -> dict[Key, tuple[str, ...]]:
        return {}

    @cached_property
    def elsewhere(self) -> Mapping[Key, str]:
        """The group that each rank waits in."""
        return {wait.key: wait.group for wait in reversed(self.waits)}

    @cached_property
    def _waits_by_group(self) -> dict[str, dict[Key, Wait]]:
        found: dict[str, dict[Key, Wait]] = {}
        for wait in self.waits:
            found.setdefault(wait.nonce, {}).setdefault(wait.key, wait)
        return found

    @cached_property
    def _processes(self) -> dict[int, ProcessView]:
        return {process.pid: process for process in reversed(self.seen.processes)}

    @cached_property
    def _children(self) -> dict[int, list[ProcessView]]:
        found: dict[int, list[ProcessView]] = {}
        for process in self.seen.processes:
            found.setdefault(process.rank_pid, []).append(process)
        return found

    @cached_property
    def _keys_by_process(self) -> dict[int, list[Key]]:
        found: dict[int, list[Key]] = {}
        for key in self.world:
            found.setdefault(key[0], []).append(key)
        return found

    @cached_property
    def _threads_of(self) -> dict[int, dict[int, ThreadStack]]:
        """The stacks of each process that has answered, by thread."""
        return {
            pid: {stack.ident: stack for stack in parse_stacks(process.stacks)}
            for pid, process in self._processes.items()
            if process.stacks
        }

    @cached_property
    def _thread_of(self) -> dict[Key, int]:
        """The thread that each rank made its first group in."""
        return {key_of(row): row.thread for view in reversed(self.seen.groups) for row in reversed(view.rows)}


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
    return Findings(seen, world, *find_most_waits(seen.groups, world))
