"""Make groups of a job on several hosts: find out which ranks share a host, and choose the wire between the others."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from phalanx.collectives import LocalGroup
from phalanx.groups.host_watch import watch_hosts, watched_world
from phalanx.groups.hosts import HostTable, PrefixedBoard, find_hosts
from phalanx.groups.hybrid import join_over_hosts
from phalanx.groups.shared_memory import SharedMemoryGroup
from phalanx.groups.wires.gloo import GlooWire
from phalanx.groups.wires.mpi import MpiWire
from phalanx.groups.wires.wire import Wire
from phalanx.launch.board import Board
from phalanx.launch.context import current_context
from phalanx.launch.hosts.addresses import Endpoint, find_own_address
from phalanx.settings import wire

_WORLD_KEPT_AS = "world of this host"
_ANY_PORT = 9


def join_job(
    board: Board,
    rank: int,
    *,
    name: str,
    timeout_s: float,
    ranks: Sequence[int],
    reached_from: str,
    table: HostTable | None = None,
    is_world: bool = False,
) -> LocalGroup:
    """Find out which ranks share a host, meet them, and return a group of all of them.

    Args:
        board: What all ranks see; the keys must be new.
        rank: The number of this rank.
        name: The group's name.
        timeout_s: How long to wait for the other ranks, here and in the group's operations.
        ranks: The number of each member in the parent group.
        reached_from: A host to which this one must have a route, as it has to the other ranks.
        table: Which ranks share a host, if that is known.
        is_world: Whether these are all ranks of the job, so that their hosts are those that watch each other.

    Raises:
        UsageError: A host does not fit, for example because it has another version of phalanx.
        OperationTimeoutError: Not every rank came in time.
        SharedMemoryError: There is not enough memory.
    """
    address = find_own_address(Endpoint(reached_from, _ANY_PORT))
    found = table or find_hosts(PrefixedBoard(board, "hosts/"), rank, len(ranks), timeout_s, title=f'group "{name}"')
    group = join_over_hosts(
        board,
        rank,
        found,
        name=name,
        timeout_s=timeout_s,
        ranks=ranks,
        make_wire=functools.partial(_make_wire, address),
    )
    if is_world:
        watch_hosts(group, PrefixedBoard(board, "watch/"), address, timeout_s)
    watch_host(group)
    return group


def watch_host(group: LocalGroup) -> None:
    """Let a group break when the launcher or the watcher of this host breaks the ranks' world."""
    context = current_context()
    if context is None:
        watched = watched_world()
        if watched is not None and watched is not group:
            group.watch(watched)
        return
    if context.is_thread:
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
