"""Make a group of all ranks that phalanx.spawn, phalanx run, torchrun or mpiexec has started, or of one rank."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from typing import Any

from phalanx.collectives import Group, LocalGroup, Timeout, seconds_of
from phalanx.engine import GroupSegment, count_cores, create_group_segment, own_affinity
from phalanx.errors import UsageError
from phalanx.groups.absence import check_alive, describe_absent
from phalanx.groups.hosts import HostTable, PrefixedBoard, find_hosts
from phalanx.groups.over_hosts import join_job
from phalanx.groups.shared_memory import SharedMemoryGroup
from phalanx.launch.board import Seal, StoreBoard
from phalanx.launch.context import LaunchContext, current_context
from phalanx.launch.hosts.addresses import parse_endpoint
from phalanx.launch.meeting import Gathering, MeetingResult, closing, meet
from phalanx.launch.rank_server import job_board
from phalanx.launch.run_name import name_of_run
from phalanx.launch.world import WORLD_NAME
from phalanx.settings import (
    has_agent_store,
    is_on_one_host,
    job_attempt,
    job_desk,
    job_id,
    job_token,
    master_address,
    read_placement,
    read_settings,
)

# How many groups this process has made from the same environment: each needs its own name.
_connects: Counter[str] = Counter()
# Which ranks of a job share a host, by the same key.
_tables: dict[str, HostTable] = {}


def connect(*, timeout_s: Timeout = None, name: str = WORLD_NAME) -> Group:
    """Return a new group of all ranks of this job. Every call makes another group, and every rank must make the call.

    Args:
        timeout_s: How long to wait for the other ranks, here and in the group's operations.
        name: The group's name.

    Raises:
        UsageError: The environment contradicts itself.
        OperationTimeoutError: Not every rank made the call in time.
        SharedMemoryError: There is not enough memory.
    """
    if may_have_several_hosts():
        return _connect_hosts(name, seconds_of(timeout_s, read_settings().timeout_s))
    return connect_locally(timeout_s=timeout_s, name=name)


def may_have_several_hosts() -> bool:
    """Tell whether the launcher of this rank may have started ranks of the job on other hosts too."""
    context = current_context()
    if context is not None and not job_desk():
        return False
    return is_on_one_host() is False


def _connect_hosts(name: str, timeout_s: float) -> LocalGroup:
    placement = read_placement()
    assert placement is not None
    place, address = placement.meeting, job_desk() or master_address()
    board, endpoint = job_board() or _store_board(placement.rank, placement.size), parse_endpoint(address)
    number = _connects[place]
    _connects[place] += 1
    table = _tables.get(place)
    if table is None:
        hosts = PrefixedBoard(board, "connect/hosts/")
        table = _tables[place] = find_hosts(hosts, placement.rank, placement.size, timeout_s)
    return join_job(
        PrefixedBoard(board, f"connect/{number}/"),
        placement.rank,
        name=name,
        timeout_s=timeout_s,
        ranks=range(placement.size),
        reached_from=endpoint.host,
        table=table,
        is_world=True,
    )


def _store_board(rank: int, size: int) -> StoreBoard:
    """Return the board of a job that another launcher has started: it is in torch's own store."""
    from torch import distributed  # programs on one host need no store

    endpoint = parse_endpoint(master_address())
    is_master = rank == 0 and not has_agent_store()
    store_type: Any = distributed.TCPStore  # type: ignore[attr-defined]
    store = store_type(endpoint.host, endpoint.port, size, is_master, wait_for_workers=False)
    # torchrun's store lives on when the ranks are started again.
    attempt = distributed.PrefixStore(f"phalanx/attempt/{job_attempt()}", store)  # type: ignore[attr-defined]
    return StoreBoard(attempt, Seal(job_token(), job_id()))


def connect_locally(*, timeout_s: Timeout = None, name: str = WORLD_NAME) -> LocalGroup:
    """Do what connect() does, for callers that need more of a group than its public methods.

    Raises:
        PhalanxError: As connect().
    """
    limit = seconds_of(timeout_s, read_settings().timeout_s)
    context = current_context()
    if context is not None:
        return _connect_spawned(context, name, limit)
    placement = read_placement()
    if placement is not None:
        number = _connects[placement.meeting]
        _connects[placement.meeting] += 1
        place = f"{name_of_run(placement)}#{number}"
        return join(placement.rank, placement.size, place, name=name, timeout_s=limit, is_thread=False)
    return join(0, 1, f"alone {os.getpid()} {id(object())}", name=name, timeout_s=limit, is_thread=False)


def _connect_spawned(context: LaunchContext, name: str, timeout_s: float) -> LocalGroup:
    number = next(context.connects)
    if number == 0 and name == WORLD_NAME:
        return SharedMemoryGroup(
            context.descriptor,
            context.rank,
            ranks=range(context.size),
            is_thread=context.is_thread,
            timeout_s=timeout_s,
        )
    place = f"{context.meeting}#{number}"
    return join(context.rank, context.size, place, name=name, timeout_s=timeout_s, is_thread=context.is_thread)


def join(
    rank: int,
    size: int,
    meeting: str,
    *,
    name: str,
    timeout_s: float,
    is_thread: bool,
    ranks: Sequence[int] | None = None,
    crowd: int = 1,
) -> LocalGroup:
    """Meet the other ranks, and return a group of all of them.

    Args:
        rank: The number of this rank.
        size: The number of ranks.
        meeting: A name that only these ranks know.
        name: The group's name.
        timeout_s: How long to wait for the other ranks, here and in the group's operations.
        is_thread: Whether ranks are threads of one process.
        ranks: The number of each member in the parent group, if there is one.
        crowd: The number of ranks that compete for the cores, if that is more than `size`.

    Raises:
        UsageError: A rank came twice.
        OperationTimeoutError: Not every rank came in time.
        SharedMemoryError: There is not enough memory.
    """

    members = range(size) if ranks is None else ranks

    def absent(cards: Sequence[tuple[int, str]]) -> list[int]:
        came = {card[0] for card in cards}
        return [members[number] for number in range(size) if number not in came]

    def order(cards: Sequence[tuple[int, str]]) -> list[tuple[int, str]]:
        came = sorted(card[0] for card in cards)
        if came != list(range(size)):
            raise UsageError(f"connect: {size} processes came with ranks {came}; each rank must come once")
        return sorted(cards)

    def create(cards: Sequence[tuple[int, str]]) -> GroupSegment:
        cores = count_cores([card[1] for card in cards], crowd)
        return create_group_segment(name, size, crowd=max(crowd, size), cores=cores)

    gathering = Gathering(
        name=f"connect|{meeting}",
        is_complete=lambda cards: len(cards) >= size,
        order=order,
        create=create,
        describe_missing=lambda cards: describe_absent(absent(cards)),
        timeout_s=timeout_s,
        check=lambda: check_alive("connect", members),
        missing=absent,
        rank_of=lambda card: members[card[0]] if card[0] < size else None,
    )

    def take_part(outcome: MeetingResult) -> LocalGroup:
        return attach(outcome, members, is_thread=is_thread, timeout_s=timeout_s)

    return meet(gathering, (rank, own_affinity()), take_part, lambda group: group.close())


def attach(outcome: MeetingResult, ranks: Sequence[int], *, is_thread: bool, timeout_s: float) -> LocalGroup:
    """Become a rank of the group whose memory a meeting has made.

    Raises:
        RuntimeError: The memory is not a group's, or the rank is taken.
    """
    with closing(outcome) as descriptor:
        return SharedMemoryGroup(descriptor, outcome.position, ranks=ranks, is_thread=is_thread, timeout_s=timeout_s)
