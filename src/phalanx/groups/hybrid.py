"""HybridGroup: ranks of several hosts, over shared memory inside a host and a wire between hosts.

docs/internals/hosts.md explains how. If each host has one member, this is a group over the network.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import weakref
from collections.abc import Callable, Sequence
from typing import NoReturn

import torch

from phalanx.collectives import LocalGroup, Timeout, seconds_of
from phalanx.diagnosis import Scene, explain, formatting
from phalanx.diagnosis.explain import late_ranks
from phalanx.diagnosis.surroundings import Surroundings, look_around
from phalanx.engine import GroupSegment, count_cores, create_group_segment, own_affinity
from phalanx.engine.facts import EntryFacts, Trouble
from phalanx.errors import OperationTimeoutError, PhalanxError, UsageError
from phalanx.groups.host_words import ELSEWHERE, HostWords
from phalanx.groups.hosts import HostTable, PrefixedBoard
from phalanx.groups.regrouping import create_for, gathering_of
from phalanx.groups.roll_call import RollCall
from phalanx.groups.shared_memory import LATE, SharedMemoryGroup
from phalanx.groups.surviving import agree_on_survivors
from phalanx.groups.wires.wire import Wire
from phalanx.launch.agent_line import ask_hosts
from phalanx.launch.board import Board
from phalanx.launch.meeting import Gathering, MeetingResult, closing, meet

_LONGER_S = 10.0

# Makes the wire of a group from its board, this rank's number, the number of ranks and a time limit.
WireMaker = Callable[[Board, int, int, float], Wire]


class HybridGroup(SharedMemoryGroup):
    """A group of ranks of several hosts. The operations are native; phalanx.collectives.Group documents them.

    `rank` and `size` are those of the whole group. What phalanx sees of the group's memory, such as snapshot(), has the
    ranks of this host.
    """

    def __init__(
        self,
        descriptor: int,
        table: HostTable,
        rank: int,
        *,
        board: Board,
        make_wire: WireMaker,
        ranks: Sequence[int],
        timeout_s: float,
    ) -> None:
        """Attach to this host's segment as `rank` of the whole group. Use phalanx.connect() instead.

        Raises:
            RuntimeError: The segment is not that of the group's ranks here, or another process has this rank.
            OperationTimeoutError: Not every rank came.
        """
        self._table = table
        self._here = table.hosts[table.host_of(rank)]
        local = self._here.index(rank)
        super().__init__(descriptor, local, ranks=ranks, is_thread=False, timeout_s=timeout_s)
        self._words = HostWords(self.name, rank, table)
        self._board = board
        self._make_wire = make_wire
        wire = make_wire(PrefixedBoard(board, "wire/"), rank, table.size, timeout_s)
        gathering = gathering_of(
            self,
            "phases",
            1,
            range(len(self._here)),
            timeout_s,
            create=lambda cards: create_group_segment(f"{self.name}:phases", len(cards), crowd=self.crowd),
            check=lambda cards: None,
        )

        def adopt(outcome: MeetingResult) -> None:
            with closing(outcome) as phases:
                self._join_hosts(phases, table.to_json(), rank, wire, _Helper(self))

        meet(gathering, (local, own_affinity()), adopt)

    def __repr__(self) -> str:
        state = " closed" if self.is_closed else ""
        hosts = len(self._table.hosts)
        return f'<HybridGroup "{self.name}" rank {self.rank} of {self.size} on {hosts} hosts{state}>'

    @property
    def hosts(self) -> tuple[tuple[int, ...], ...]:
        """The ranks of each host."""
        return self._table.hosts

    def empty(self, *shape: int, dtype: torch.dtype | None = None, timeout_s: Timeout = None) -> torch.Tensor:
        """Return an ordinary uninitialised tensor: ranks of several hosts can't share memory.

        Raises:
            UsageError: The shape is negative.
        """
        self._require_open("empty")
        if min(shape, default=0) < 0:
            raise UsageError(f'empty of group "{self.name}": a tensor of shape {shape} is not possible')
        return torch.empty(shape, dtype=dtype, device="cpu")

    def split(self, ranks: Sequence[int], *, name: str | None = None, timeout_s: Timeout = None) -> LocalGroup | None:  # type: ignore[override]
        """Make a group of some of the ranks, in ascending order. Only its members need to call this.

        Raises:
            UsageError: A rank is outside this group or given twice.
            OperationTimeoutError: A member did not make the call in time.
        """
        members = self._members_of_split(ranks)
        if not members:
            return None
        own = self._name_of_split(members, _key_of("split", members))
        title = f"split {','.join(map(str, members))}"
        return self._regroup_over_hosts("split", members, name or own, timeout_s, title)

    def split_by_color(  # type: ignore[override]
        self, color: int | None, key: int = 0, *, name: str | None = None, timeout_s: Timeout = None
    ) -> LocalGroup | None:
        """Make one group per color, with its ranks in the order of their keys. Every rank must call this.

        Raises:
            PhalanxError: As any collective.
        """
        table = self.all_gather_object((color, key))
        if color is None:
            return None
        members = sorted((its_key, rank) for rank, (its_color, its_key) in enumerate(table) if its_color == color)
        ordered = [rank for _, rank in members]
        own = f"{self.name}:color:{color}"
        return self._regroup_over_hosts("color", ordered, name or own, timeout_s, f"split_by_color {color}")

    def merge(self, place: str, size: int, *, name: str | None = None, timeout_s: Timeout = None) -> NoReturn:
        """Refuse: groups over hosts have no common place.

        Raises:
            UsageError: Always.
        """
        raise UsageError(
            f'merge of group "{self.name}": groups over several hosts can\'t merge\n'
            "  do       make the larger group first, with phalanx.connect(), and split it"
        )

    def shrink(self, *, without: Sequence[int] = (), timeout_s: Timeout = None) -> LocalGroup:  # type: ignore[override]
        """Make a group of the ranks that are left, even if this group is broken. Every survivor must call this.

        Args:
            without: Ranks to leave out although they are alive, for example because they hang.
            timeout_s: How long to wait for the survivors.

        Raises:
            UsageError: A rank is outside this group, or this rank is left out, or came too late.
            OperationTimeoutError: A survivor did not make the call in time.
        """
        if without:
            self._check_ranks(without)
        if self.rank in without:
            raise UsageError(f"shrink: rank {self.rank} can't leave itself out")
        limit = seconds_of(timeout_s, self.timeout_s)
        number = self.next_meeting("shrink")
        board = PrefixedBoard(self._board, f"shrink/{number}/")
        here = self._survivors_here(number, without, limit)
        try:
            decided: list[int] | None = None
            error: PhalanxError | None = None
            if here.rank == 0:
                try:
                    own, hosts = self._table.host_of(self.rank), len(self._table.hosts)
                    decided = agree_on_survivors(board, own, hosts, here.ranks, limit)
                except PhalanxError as raised:
                    error = raised
            decided, told = here.broadcast_object((decided, None if error is None else str(error)))
        finally:
            here.close()
        if decided is None:
            raise error or OperationTimeoutError(str(told))
        return join_over_hosts(
            PrefixedBoard(board, "group/"),
            decided.index(self.rank),
            self._table.select(decided),
            name=f"{self.name}:shrunk",
            timeout_s=limit,
            ranks=decided,
            make_wire=self._make_wire,
        )

    def _survivors_here(self, number: int, without: Sequence[int], timeout_s: float) -> SharedMemoryGroup:
        """Meet the survivors of this host; the `ranks` of the group are their numbers in this one."""

        def missing(cards: Sequence[tuple[int, str]]) -> set[int]:
            left = set(self._here) - {*self.find_dead(), *without}
            return left - {card[0] for card in cards}

        gathering = Gathering(
            name=f'shrink of group "{self.name}"|{self.nonce.hex()}|{number}',
            is_complete=lambda cards: not missing(cards),
            order=sorted,
            create=lambda cards: create_for(f"{self.name}:survivors", cards, crowd=len(cards)),
            describe_missing=lambda cards: f"{formatting.rank_list(missing(cards))} did not come",
            missing=missing,
            timeout_s=timeout_s,
            rank_of=lambda card: int(card[0]),
        )

        def attach(outcome: MeetingResult) -> SharedMemoryGroup:
            ranks = [int(card[0]) for card in outcome.cards]
            with closing(outcome) as descriptor:
                # While one of them waits for the other hosts, the others wait for that one, so they wait longer.
                limit_s = 2 * timeout_s + _LONGER_S
                return SharedMemoryGroup(descriptor, outcome.position, ranks=ranks, is_thread=False, timeout_s=limit_s)

        return meet(gathering, (self.rank, own_affinity()), attach, SharedMemoryGroup.close)

    def explain_trouble(self, facts: Trouble) -> PhalanxError:
        """Return the exception for a call of this rank that could not be finished."""
        if facts.kind in ("usage", "closed", "forked"):
            return explain(facts, Scene(self.name, self.rank, self.size))
        is_own = facts.is_message and not facts.is_fatal
        if facts.culprit == ELSEWHERE and is_own and facts.kind in ("mismatch", "timeout"):
            return self._words.explain_message(facts, ask_hosts(self.name) if facts.kind == "timeout" else ())
        if facts.culprit == ELSEWHERE:
            entry = self.entry(self._here.index(self.rank), facts.seq) if facts.seq else None
            return self._words.explain_elsewhere(facts, entry)
        rows = self.snapshot()
        seq = facts.fault_seq if facts.kind in ("mismatch", "timeout") else facts.seq
        entries = [self.entry(rank, seq) for rank in range(len(rows))] if seq else []
        around = look_around(self.nonce, rows, late_ranks(facts, rows)) if facts.kind in LATE else Surroundings()
        return self._words.explain_here(facts, rows, entries, around)

    def describe_trouble(self, facts: Trouble) -> str:
        """Say for other hosts what has happened here."""
        error = self.explain_trouble(facts._replace(operation="operation", seq=facts.fault_seq))
        return self._words.for_others(error, facts.kind, os.getpid())

    def find_late(self, seq: int) -> str:
        """Ask the launchers which ranks of other hosts have not come to an operation; "" if nobody knows."""
        return self._words.describe_late(ask_hosts(self.name), seq)

    def find_left(self) -> str:
        """Ask the launchers which rank of another host has closed this group; "" if nobody knows."""
        return self._words.describe_left(ask_hosts(self.name))

    def find_gone(self) -> list[int]:
        """Ask the launchers which ranks of other hosts have closed this group or ended."""
        return self._words.find_gone(ask_hosts(self.name))

    def _regroup_over_hosts(
        self, kind: str, members: Sequence[int], name: str, timeout_s: Timeout, title: str
    ) -> LocalGroup:
        limit = seconds_of(timeout_s, self.timeout_s)
        # Only the members count, so their list is a part of the key: ranks that are in other groups count other calls.
        key = _key_of(kind, members)
        board = PrefixedBoard(self._board, f"{key}/{self.next_meeting(key)}/")
        group = join_over_hosts(
            board,
            members.index(self.rank),
            self._table.select(members),
            name=name,
            timeout_s=limit,
            ranks=members,
            make_wire=self._make_wire,
            roll=RollCall(f'{title} of group "{self.name}"', self._checking(title)),
        )
        group.watch(self)
        return group

    def _checking(self, operation: str) -> Callable[[], None]:
        """Return a function that raises if this group has broken since: then not all members will come."""
        was_broken = self.fault() is not None

        def check() -> None:
            fault = None if was_broken else self.fault()
            if fault is not None:
                culprit = ELSEWHERE if fault.text.startswith("host ") else fault.culprit
                raise self.explain_trouble(
                    Trouble(
                        fault.kind,
                        operation,
                        culprit=culprit,
                        reporter=fault.reporter,
                        text=fault.text,
                        is_fatal=True,
                        timeout_s=self.timeout_s,
                    )
                )

        return check


class _Helper:
    """What the engine calls; it does not keep the group alive."""

    def __init__(self, group: HybridGroup) -> None:
        self._group = weakref.ref(group)

    def describe_call(
        self, operation: str, dtype: str, op: str, root: int, count: int, shape: tuple[int, ...], location: str
    ) -> str:
        """Write the call of another host."""
        entry = EntryFacts(0, operation, dtype, "cpu", op, root, -1, count, 0, location, False, 0, 0, shape)
        where = f", {formatting.place(location)}" if location else ""
        return formatting.visible(f"{formatting.call(entry)}{where}")

    def describe_trouble(self, facts: Trouble) -> str:
        """Write what happened on this host."""
        group = self._group()
        return f"{facts.kind} {facts.text}" if group is None else group.describe_trouble(facts)

    def find_late(self, seq: int) -> str:
        """Name the ranks of other hosts that have not come to an operation."""
        group = self._group()
        return "" if group is None else group.find_late(seq)

    def find_left(self) -> str:
        """Name the rank of another host that has closed the group."""
        group = self._group()
        return "" if group is None else group.find_left()

    def find_gone(self) -> list[int]:
        """Name the ranks of other hosts that have closed this group or ended."""
        return [] if (group := self._group()) is None else group.find_gone()


def _key_of(kind: str, members: Sequence[int]) -> str:
    return f"{kind} {hashlib.sha256(repr(list(members)).encode()).hexdigest()[:32]}"


def join_over_hosts(
    board: Board,
    rank: int,
    table: HostTable,
    *,
    name: str,
    timeout_s: float,
    ranks: Sequence[int],
    make_wire: WireMaker,
    roll: RollCall | None = None,
) -> SharedMemoryGroup:
    """Meet the other ranks, and return a group of all of them: over shared memory only if they are all on one host.

    Args:
        board: What all ranks see; the keys must be new.
        rank: The number of this rank.
        table: Which ranks share a host.
        name: The group's name.
        timeout_s: How long to wait for the other ranks, here and in the group's operations.
        ranks: The number of each member in the parent group.
        make_wire: Makes the wire between hosts.
        roll: What errors say if a rank does not come.

    Raises:
        OperationTimeoutError: Not every rank came in time.
        SharedMemoryError: There is not enough memory.
    """
    host = table.host_of(rank)
    here = table.hosts[host]
    came = {each: f"came/{number}" for number, each in enumerate(ranks)}
    board.set(f"came/{rank}", "")
    (roll or RollCall(f'group "{name}"')).read(board, came, timeout_s)
    if rank == here[0]:
        board.set(f"place/{host}", secrets.token_hex(16))
    place = board.get(f"place/{host}", timeout_s)

    def missing(cards: Sequence[tuple[int, str]]) -> list[int]:
        came = {card[0] for card in cards}
        return [ranks[its] for number, its in enumerate(here) if number not in came]

    def create(cards: Sequence[tuple[int, str]]) -> GroupSegment:
        cores = count_cores([card[1] for card in cards], len(here))
        return create_group_segment(name, len(here), crowd=len(here), cores=cores)

    gathering = Gathering(
        name=f"hosts|{place}",
        is_complete=lambda cards: len(cards) >= len(here),
        order=sorted,
        create=create,
        describe_missing=lambda cards: f"{formatting.rank_list(missing(cards))} did not come",
        timeout_s=timeout_s,
        missing=missing,
        rank_of=lambda card: ranks[here[card[0]]],
    )

    def attach(outcome: MeetingResult) -> SharedMemoryGroup:
        with closing(outcome) as descriptor:
            if len(table.hosts) == 1:
                return SharedMemoryGroup(
                    descriptor, outcome.position, ranks=ranks, is_thread=False, timeout_s=timeout_s
                )
            return HybridGroup(
                descriptor, table, rank, board=board, make_wire=make_wire, ranks=ranks, timeout_s=timeout_s
            )

    return meet(gathering, (here.index(rank), own_affinity()), attach, SharedMemoryGroup.close)
