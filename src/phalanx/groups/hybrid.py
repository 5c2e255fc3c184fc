"""HybridGroup: ranks of several hosts, over shared memory inside a host and a wire between hosts.

docs/internals/hosts.md explains how. If each host has one member, this is a group over the network.
"""

from __future__ import annotations

import hashlib
import secrets
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import torch

from phalanx.collectives import LocalGroup, Timeout, seconds_of
from phalanx.diagnosis import Scene, explain, formatting
from phalanx.diagnosis.explain import late_ranks
from phalanx.diagnosis.surroundings import Surroundings, look_around
from phalanx.engine import GroupSegment, count_cores, create_group_segment, own_affinity
from phalanx.engine.facts import EntryFacts, RankFacts, Trouble
from phalanx.errors import (
    AbortedError,
    DeadlockError,
    MismatchError,
    OperationTimeoutError,
    PeerDiedError,
    PeerFailedError,
    PeerLeftError,
    PhalanxError,
    SharedMemoryError,
    UsageError,
)
from phalanx.groups.host_messages import HostMessages
from phalanx.groups.hosts import HostTable
from phalanx.groups.regrouping import gathering_of
from phalanx.groups.shared_memory import LATE, SharedMemoryGroup
from phalanx.groups.wires.wire import Wire
from phalanx.launch.agent_line import ask_hosts
from phalanx.launch.board import Board
from phalanx.launch.meeting import Gathering, MeetingResult, closing, meet

_ELSEWHERE = -2  # the culprit of a fault if it is a rank of another host; see native/core/faults.hpp
_VERDICT_S = 1.5  # how long the agents may take to say why a connection was lost

_ERRORS: dict[str, type[PhalanxError]] = {
    "mismatch": MismatchError,
    "timeout": OperationTimeoutError,
    "peer_died": PeerDiedError,
    "peer_left": PeerLeftError,
    "peer_failed": PeerFailedError,
    "aborted": AbortedError,
    "interrupted": AbortedError,
    "out_of_memory": SharedMemoryError,
    "deadlock": DeadlockError,
}
_ADVICE = {
    "mismatch": "call the same operations in the same order with the same sizes on every rank of every host",
    "timeout": "find out why it is late, or give a longer timeout (timeout_s)",
    "peer_left": "let every rank make the same calls before it closes the group",
}


class PrefixedBoard:
    """A part of a board. See phalanx.launch.board.Board."""

    def __init__(self, board: Board, prefix: str) -> None:
        self._board = board
        self._prefix = prefix

    def set(self, key: str, text: str) -> None:
        """Write a text."""
        self._board.set(self._prefix + key, text)

    def get(self, key: str, timeout_s: float) -> str:
        """Wait for a text, and return it."""
        return self._board.get(self._prefix + key, timeout_s)

    def get_many(self, keys: Sequence[str], timeout_s: float) -> list[str]:
        """Wait for texts, and return them."""
        return self._board.get_many([self._prefix + key for key in keys], timeout_s)

    def add(self, key: str, amount: int = 1) -> int:
        """Add to a counter."""
        return self._board.add(self._prefix + key, amount)


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
        self._board = board
        self._make_wire = make_wire
        wire = make_wire(PrefixedBoard(board, "wire/"), rank, table.size, timeout_s)
        self._messages = HostMessages(self, wire)
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
        self._require_open("split")
        self._check_ranks(ranks)
        members = sorted(ranks)
        if self.rank not in members:
            return None
        listed = ",".join(map(str, members))
        number = self._meetings[_key_of("split", members)] + 1
        own = f"{self.name}:split:{listed}" if number == 1 else f"{self.name}:split:{listed}:{number}"
        return self._regroup_over_hosts("split", members, name or own, timeout_s)

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
        return self._regroup_over_hosts("color", ordered, name or f"{self.name}:color:{color}", timeout_s)

    def merge(self, place: str, size: int, *, name: str | None = None, timeout_s: Timeout = None) -> NoReturn:
        """Refuse: groups over hosts have no common place.

        Raises:
            UsageError: Always.
        """
        raise UsageError(
            f'merge of group "{self.name}": groups over several hosts can\'t merge\n'
            "  do       make the larger group first, with phalanx.connect(), and split it"
        )

    def explain_trouble(self, facts: Trouble) -> PhalanxError:
        """Return the exception for a call of this rank that could not be finished."""
        if facts.kind in ("usage", "closed", "forked"):
            return explain(facts, Scene(self.name, self.rank, self.size))
        if facts.culprit == _ELSEWHERE:
            return self._explain_elsewhere(facts)
        rows = self.snapshot()
        seq = facts.fault_seq if facts.kind in ("mismatch", "timeout") else facts.seq
        entries = [self.entry(rank, seq) for rank in range(len(rows))] if seq else []
        around = look_around(self.nonce, rows, late_ranks(facts, rows)) if facts.kind in LATE else Surroundings()
        return explain(self._told_globally(facts), self._scene(rows, entries, around, facts))

    def lost_message(self, operation: str, peer: int, error: Exception, timeout_s: float) -> PhalanxError:
        """Return the exception for a message whose connection was lost."""
        until = time.monotonic() + _VERDICT_S
        while (fault := self.fault()) is None and time.monotonic() < until:
            time.sleep(0.01)
        facts = Trouble("peer_died", operation, root=peer, timeout_s=timeout_s, culprit=_ELSEWHERE, is_fatal=True)
        if fault is not None:
            local = fault.culprit if fault.text[:6] != "host " else _ELSEWHERE
            return self.explain_trouble(
                facts._replace(kind=fault.kind, text=fault.text, culprit=local, reporter=fault.reporter)
            )
        text = f"rank {peer} on host {self._table.host_of(peer)}"
        if "imed out" in str(error):
            self.abort(f"{operation} with {text} timed out after {formatting.seconds(timeout_s)}")
            what = "has not received it" if operation == "send" else "has not sent it"
            return self.explain_trouble(
                facts._replace(
                    kind="timeout",
                    text=f"timed out after {formatting.seconds(timeout_s)}, waiting for {text}: it {what}",
                )
            )
        self.abort(f"the connection to {text} was lost")
        return self.explain_trouble(facts._replace(text=f"the connection to {text} was lost: {error}"))

    def _explain_elsewhere(self, facts: Trouble) -> PhalanxError:
        headline, *more = facts.text.splitlines() or ["something happened on another host"]
        title = f'{facts.operation}{f" #{facts.seq}" if facts.seq else ""} of group "{self.name}"'
        own = f"rank {self.rank} of {self.size}"
        entry = self.entry(self._here.index(self.rank), facts.seq) if facts.seq else None
        if entry is not None:
            own += f" called {formatting.call(entry)}"
        elif facts.shape:
            own += f" called {facts.operation} {facts.dtype} {formatting.shape(facts.shape)}"
        if facts.location:
            own += f", {formatting.place(facts.location)}"
        if facts.kind == "mismatch" and " called " in headline:
            more = [f"  differs  {headline}", *more]
            headline = "hosts called different things"
        if facts.kind == "timeout" and not facts.is_message:
            if headline.endswith(" did not come") and not more:
                more = self._rows_elsewhere(facts)
            if headline.endswith(" did not come"):
                headline = f"timed out after {formatting.seconds(facts.timeout_s)}, {headline}"
        do = _ADVICE.get(facts.kind, "look at what the ranks of that host printed")
        if facts.kind == "peer_failed" and not facts.is_fatal:
            do = "correct the call on that rank"
        lines = "\n".join([f"{title}: {headline}", f"  here     {own}", *more, f"  do       {do}"])
        return _ERRORS.get(facts.kind, PeerFailedError)(
            lines,
            group=self.name,
            rank=self.rank,
            num_ranks=self.size,
            operation=facts.operation,
            sequence=facts.seq or None,
            verdict="elsewhere",
        )

    def _rows_elsewhere(self, facts: Trouble) -> list[str]:
        """Say what the ranks of other hosts that are late do instead, as far as the agents know it."""
        # The world of each host has the same name as a world over hosts, but nobody calls anything there.
        answers = [found for found in ask_hosts(self.name) if any(row.arrived for row in found.rows)]
        if [len(found.rows) for found in answers] != [len(host) for host in self._table.hosts]:
            return []
        lines = []
        for found, members in zip(answers, self._table.hosts, strict=True):
            for row in found.rows:
                if row.arrived >= facts.fault_seq or members == self._here:
                    continue
                what = Scene(self.name, 0, len(found.rows), found.rows).whereabouts(row.rank)
                lines.append(f"  missing  rank {members[row.rank]} (pid {row.any_pid}) on host {found.host} {what}")
                lines += [f"           is now at {found.places[row.rank]}"] if row.rank in found.places else []
        return lines

    def describe_trouble(self, facts: Trouble) -> str:
        """Say for other hosts what has happened here: this rank's error without what concerns only its own call."""
        text = str(self.explain_trouble(facts._replace(operation="operation", seq=facts.fault_seq)))
        headline, *lines = text.split(f'of group "{self.name}": ', 1)[-1].splitlines()
        if facts.kind == "timeout":  # the others know how long that was
            headline = headline.removeprefix("timed out after").partition(", ")[2] or headline
        kept, keeps = [], True
        for line in lines:
            if line[2:11].strip():
                keeps = not line.startswith(("  here ", "  do "))
            if keeps:
                kept.append(line)
        return "\n".join([headline, *kept])

    def message(
        self, operation: str, tensor: torch.Tensor, peer: int, tag: int, timeout_s: float, is_async: bool
    ) -> Any:
        """Serve send and recv with a rank of another host."""
        return self._messages.start(operation, tensor, peer, tag, timeout_s, is_async)

    def _told_globally(self, facts: Trouble) -> Trouble:
        own = {rank: self._global(rank) for rank in (facts.culprit, facts.reporter)}
        root = self._global(facts.root) if facts.is_message else facts.root
        return facts._replace(culprit=own[facts.culprit], reporter=own[facts.reporter], root=root)

    def _global(self, local: int) -> int:
        return self._here[local] if 0 <= local < len(self._here) else local

    def _scene(
        self, rows: Sequence[RankFacts], entries: Sequence[EntryFacts | None], around: Surroundings, facts: Trouble
    ) -> Scene:
        """Give this host's ranks their numbers in the whole group. The others are not late, as far as is known."""
        last = max((row.arrived for row in rows), default=0) + facts.fault_seq
        all_rows = [_unknown_row(rank, last) for rank in range(self.size)]
        all_entries: list[EntryFacts | None] = [None] * self.size
        for row in rows:
            mail = row.mail and row.mail._replace(root=self._global(row.mail.root))
            rank = self._global(row.rank)
            all_rows[rank] = row._replace(rank=rank, sleeps_for=self._global(row.sleeps_for), mail=mail)
            if entries:
                all_entries[rank] = entries[row.rank]
        return Scene(
            self.name,
            self.rank,
            self.size,
            all_rows,
            all_entries if entries else (),
            Surroundings(
                {self._global(rank): stand for rank, stand in around.stands.items()},
                {self._global(rank): wait for rank, wait in around.waits.items()},
                {self._global(rank): state for rank, state in around.states.items()},
                around.cycle,
            ),
        )

    def _regroup_over_hosts(self, kind: str, members: Sequence[int], name: str, timeout_s: Timeout) -> LocalGroup:
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
        )
        group.watch(self)
        return group


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

    def message(
        self, operation: str, tensor: torch.Tensor, peer: int, tag: int, timeout_s: float, is_async: bool
    ) -> Any:
        """Serve send and recv with a rank of another host."""
        group = self._group()
        assert group is not None
        return group.message(operation, tensor, peer, tag, timeout_s, is_async)


def _key_of(kind: str, members: Sequence[int]) -> str:
    return f"{kind} {hashlib.sha256(repr(list(members)).encode()).hexdigest()[:32]}"


def _unknown_row(rank: int, arrived: int) -> RankFacts:
    return RankFacts(rank, 0, 0, 0, False, False, False, "present", -1, arrived, arrived, -1, None, None, None)


def join_over_hosts(
    board: Board,
    rank: int,
    table: HostTable,
    *,
    name: str,
    timeout_s: float,
    ranks: Sequence[int],
    make_wire: WireMaker,
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

    Raises:
        OperationTimeoutError: Not every rank came in time.
        SharedMemoryError: There is not enough memory.
    """
    host = table.host_of(rank)
    here = table.hosts[host]
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
