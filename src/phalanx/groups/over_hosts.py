"""Make groups of a job on several hosts: find out which ranks share a host, and choose the wire between the others."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from phalanx.collectives import LocalGroup
from phalanx.groups.hosts import HostTable, PrefixedBoard, find_hosts
from phalanx.groups.hybrid import join_over_hosts
from phalanx.groups.shared_memory import SharedMemoryGroup
from phalanx.groups.wires.gloo import GlooWire, own_address
from phalanx.groups.wires.mpi import MpiWire
from phalanx.groups.wires.wire import Wire
from phalanx.launch.board import Board
from phalanx.launch.context import current_context
from phalanx.settings import wire

_WORLD_KEPT_AS = "world of this host"


def join_job(
    board: Board,
    rank: int,
    size: int,
    *,
    name: str,
    timeout_s: float,
    ranks: Sequence[int],
    reached_from: str,
    table: HostTable | None = None,
) -> LocalGroup:
    """Find out which ranks share a host, meet them, and return a group of all of them.

    Args:
        board: What all ranks see; the keys must be new.
        rank: The number of this rank.
        size: The number of ranks.
        name: The group's name.
        timeout_s: How long to wait for the other ranks, here and in the group's operations.
        ranks: The number of each member in the parent group.
        reached_from: A host to which this one must have a route, as it has to the other ranks.
        table: Which ranks share a host, if that is known.

    Raises:
        OperationTimeoutError: Not every rank came in time.
        SharedMemoryError: There is not enough memory.
    """
    found = table or find_hosts(PrefixedBoard(board, "hosts/"), rank, size, timeout_s)
    group = join_over_hosts(
        board,
        rank,
        found,
        name=name,
        timeout_s=timeout_s,
        ranks=ranks,
        make_wire=functools.partial(_make_wire, own_address(reached_from)),
    )
    watch_host(group)
    return group


def watch_host(group: LocalGroup) -> None:
    """Let a group break when the launcher of this host breaks the ranks' world."""
    context = current_context()
    if context is None or context.is_thread:
        return
    world = context.own.get(_WORLD_KEPT_AS)
    if world is None:
        world = context.own[_WORLD_KEPT_AS] = SharedMemoryGroup(
            context.descriptor, context.rank, ranks=range(context.size), is_thread=False, timeout_s=group.timeout_s
        )
    group.watch(world)


def _make_wire(address: str, board: Board, rank: int, size: int, timeout_s: float) -> Wire:
    if wire() == "mpi":
        return MpiWire(board, rank, size, timeout_s)
    return GlooWire(board, rank, size, address, timeout_s)
