"""Join the group that a launcher has prepared: phalanx.spawn, torchrun, mpiexec, or nobody, which gives one rank."""

from __future__ import annotations

import os
from collections import Counter

from phalanx.collectives import Timeout
from phalanx.engine import create_group_segment
from phalanx.errors import UsageError
from phalanx.groups.shared_memory import SharedMemoryGroup, _seconds
from phalanx.launch.context import LaunchContext, current_context
from phalanx.launch.meeting import Gathering, meet
from phalanx.launch.spawn import WORLD_NAME
from phalanx.settings import Placement, read_placement, read_settings

# Groups made from the same environment by this process: each gets a name of its own.
_connects: Counter[str] = Counter()


def connect(*, timeout_s: Timeout = None, name: str = WORLD_NAME) -> SharedMemoryGroup:
    """Return a new group of all ranks of this job. Every call makes another one; every rank must make it.

    Args:
        timeout_s: How long to wait for the other ranks, here and in the group's operations.
        name: The group's name.

    Raises:
        UsageError: The environment contradicts itself.
        OperationTimeoutError: Not every rank came.
        SharedMemoryError: The machine has not got the memory.
    """
    limit = _seconds(timeout_s, read_settings().timeout_s)
    context = current_context()
    if context is not None:
        return _connect_spawned(context, name, limit)
    placement = read_placement()
    if placement is not None:
        number = _connects[placement.meeting]
        _connects[placement.meeting] += 1
        return _join(placement, f"{placement.meeting}#{number}", name, limit, is_thread=False)
    return _join(Placement(0, 1, ""), f"alone {os.getpid()} {id(object())}", name, limit, is_thread=False)


def _connect_spawned(context: LaunchContext, name: str, timeout_s: float) -> SharedMemoryGroup:
    number = next(context.connects)
    if number == 0 and name == WORLD_NAME:
        return SharedMemoryGroup(
            context.descriptor,
            context.rank,
            ranks=range(context.size),
            is_thread=context.is_thread,
            timeout_s=timeout_s,
        )
    placement = Placement(context.rank, context.size, context.meeting)
    return _join(placement, f"{context.meeting}#{number}", name, timeout_s, is_thread=context.is_thread)


def _join(placement: Placement, meeting: str, name: str, timeout_s: float, *, is_thread: bool) -> SharedMemoryGroup:
    def order(cards: object) -> list[int]:
        ranks = sorted(cards)  # type: ignore[call-overload]
        if ranks != list(range(placement.size)):
            raise UsageError(f"connect: {placement.size} processes came with ranks {ranks}; each rank must come once")
        return ranks  # type: ignore[no-any-return]

    gathering = Gathering(
        name=f"connect|{meeting}",
        is_complete=lambda cards: len(cards) >= placement.size,
        order=order,
        create=lambda cards: create_group_segment(name, placement.size, crowd=placement.size),
        describe_missing=lambda cards: f"ranks {sorted(set(range(placement.size)) - set(cards))} did not come",
        timeout_s=timeout_s,
    )
    outcome = meet(gathering, placement.rank)
    try:
        return SharedMemoryGroup(
            outcome.descriptor,
            outcome.position,
            ranks=range(placement.size),
            is_thread=is_thread,
            timeout_s=timeout_s,
        )
    finally:
        os.close(outcome.descriptor)
