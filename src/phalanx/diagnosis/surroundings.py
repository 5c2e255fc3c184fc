"""What a rank whose operation failed can find out about its peers: their stacks, and whether ranks wait in a circle."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from phalanx.diagnosis.asking import ask_for_stacks
from phalanx.diagnosis.observer import Observer
from phalanx.diagnosis.processes import is_alive, state_of
from phalanx.diagnosis.stacks import Frame, is_users, parse_stacks
from phalanx.diagnosis.views import view_of
from phalanx.diagnosis.waits import Wait, describe_cycle, find_cycle, find_waits, key_of, world_of
from phalanx.engine.facts import RankFacts

_SHOWN_FRAMES = 6
_LONGEST_S = 0.3
_PATIENCE_S = 1.5  # a thread answers at once, but on a busy machine it may wait for a core
_MOST_PROCESSES = 32  # at most, because every rank of a large job may do this at the same moment

ProcessState = Literal["stopped", "gone"]


@dataclass(frozen=True)
class Surroundings:
    """What was found out, by rank of the group.

    Attributes:
        stands: The stack of a rank, the innermost call first.
        waits: The operation of another group that a rank waits in.
        states: The state of a rank's process if it explains the failure: "stopped", "gone".
        cycle: Ranks that wait for each other in a circle, one line each.
    """

    stands: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    waits: Mapping[int, str] = field(default_factory=dict)
    states: Mapping[int, ProcessState] = field(default_factory=dict)
    cycle: Sequence[str] = ()


def look_around(nonce: bytes, rows: Sequence[RankFacts], ranks: Iterable[int]) -> Surroundings:
    """Look at these ranks of a group, and at the ranks that they wait for in any group.

    An operation has already failed, and that failure must be reported. So if anything goes wrong here, for example if
    there is no memory to map a group, this returns empty Surroundings.

    Args:
        nonce: Identifies the group.
        rows: Its members.
        ranks: The ranks to look at.
    """
    try:
        return _look_around(nonce, rows, ranks)
    except Exception:
        return Surroundings()


def _look_around(nonce: bytes, rows: Sequence[RankFacts], ranks: Iterable[int]) -> Surroundings:
    wanted = [row for row in rows if row.rank in set(ranks) and row.is_here and key_of(row)[0]]
    waits = _follow_waits({key_of(row)[0] for row in wanted[:_MOST_PROCESSES]})
    cycle = find_cycle(waits)
    is_certain = bool(cycle) and not any(wait.is_async for wait in cycle)
    elsewhere = {
        row.rank: f'{wait.text} of group "{wait.group}"'
        for row in wanted
        for wait in waits
        if wait.key == key_of(row) and wait.nonce != nonce.hex()
    }
    living = [row for row in wanted if row.state in ("present", "absent") or row.departure in ("closed", "dropped")]
    stacks = _stacks(living)
    # The last calls of a rank that has left may be those by which a process ends.
    ended = {row.rank for row in living if row.state == "left" and not _runs_program(stacks.get(row.rank, ()))}
    stands = {
        rank: tuple(map(str, frames[:_SHOWN_FRAMES])) for rank, frames in stacks.items() if frames and rank not in ended
    }
    gone: dict[int, ProcessState] = dict.fromkeys(ended.intersection(stacks), "gone")
    return Surroundings(stands, elsewhere, {**gone, **_states(living)}, describe_cycle(cycle) if is_certain else ())


def _follow_waits(pids: set[int]) -> list[Wait]:
    """Return the waits of this process and of the given ones, then of those that they wait for, and so on."""
    observer = Observer(is_writable=False)
    observer.follow_waits({os.getpid(), *pids}, _MOST_PROCESSES, _LONGEST_S)
    views = [view_of(group) for group in observer.groups]
    return find_waits(views, world_of(views), also_broken=True)


def _states(rows: Iterable[RankFacts]) -> dict[int, ProcessState]:
    found: dict[int, ProcessState] = {}
    for row in rows:
        pid = key_of(row)[0]
        if state_of(pid) in ("T", "t"):
            found[row.rank] = "stopped"
        elif not is_alive(pid):
            found[row.rank] = "gone"
    return found


def _runs_program(frames: Iterable[Frame]) -> bool:
    return any(is_users(frame.file) for frame in frames)


def _stacks(rows: Sequence[RankFacts]) -> dict[int, tuple[Frame, ...]]:
    """Return the calls of the program on each rank that answers."""
    threads: dict[int, list[int]] = {}
    for row in rows:
        threads.setdefault(key_of(row)[0], []).append(row.thread)
    others = {pid: [each for each in some if each] for pid, some in threads.items()}
    answers = ask_for_stacks(threads, others, timeout_s=_PATIENCE_S)
    stacks = {}
    for row in rows:
        pid = key_of(row)[0]
        wanted = row.thread or pid
        stack = next((each for each in parse_stacks(answers.get(pid, "")) if each.ident == wanted), None)
        if stack is not None:
            stacks[row.rank] = stack.users_frames()
    return stacks
