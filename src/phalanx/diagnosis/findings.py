"""Conclusions from an observation: which rank waits for which and since when, and where each rank is in its program."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from phalanx.diagnosis.observation import Observation
from phalanx.diagnosis.stacks import Frame, ThreadStack, is_launchers, is_users, parse_stacks, stack_of
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
            # A rank that is a thread has no end of its own; other threads say nothing about it.
            others = () if key[1] else tuple(self._threads_of.get(key[0], {}).values())
            self._stands[key] = () if stack is None else describe_stand(stack, others)
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
    threads = parse_stacks(process.stacks)
    stack = stack_of(threads, process.pid)
    frames = () if stack is None or stack.is_idle() else stack.users_frames()
    if stack is None or not frames:
        return ""
    if stack.is_at_exit():
        return describe_stand(stack, threads)[0]
    return "" if is_launchers(frames[0].file) or frames[0].file.startswith("<") else str(frames[0])


def describe_stand(stack: ThreadStack, threads: Iterable[ThreadStack] = ()) -> tuple[str, ...]:
    """Return the calls of the program on a stack, the innermost first; if the program has ended, the first says so.

    Args:
        stack: The stack of the main thread, or of a rank that is a thread.
        threads: All threads of the process: a process does not end before its threads, unless they are daemons.
    """
    calls = tuple(map(str, stack.users_frames()))
    if not calls or not stack.is_at_exit():
        return calls
    if stack.program_frames():
        return (f"{calls[0]} (the program has ended; this runs at its exit)", *calls[1:])
    others = [thread for thread in threads if thread is not stack and any(map(_is_of_user, thread.own_frames()))]
    awaited = [str(thread.users_frames()[0]) for thread in others]
    if awaited:
        return (f"{awaited[0]} (the program has ended, and its process waits for this thread)", *awaited[1:])
    return (f"{calls[0]} (the program has ended; this runs at its exit)", *calls[1:])


def _is_of_user(frame: Frame) -> bool:
    return is_users(frame.file)


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
