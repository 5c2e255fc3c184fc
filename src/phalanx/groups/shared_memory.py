"""Ranks of one host, as processes or threads, over the native engine."""

from __future__ import annotations

import os
import weakref
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import typing_extensions
from torch.utils.dlpack import from_dlpack

from phalanx.collectives import Timeout
from phalanx.diagnosis import Scene, explain
from phalanx.diagnosis.explain import describe_missing, late_ranks
from phalanx.diagnosis.stacks import answer_with_stacks
from phalanx.diagnosis.surroundings import Surroundings, look_around
from phalanx.engine import RankEndpoint, create_group_segment, create_symmetric_segment
from phalanx.errors import MismatchError, PhalanxError, UsageError
from phalanx.groups import objects
from phalanx.groups.coalescing import Coalescing, CombinedWork
from phalanx.groups.cuda import prepare_engine
from phalanx.groups.current import enter_group, leave_group
from phalanx.groups.living import add_living
from phalanx.groups.tensor_gate import open_gate
from phalanx.groups.tracing import join_recording
from phalanx.launch.context import current_context
from phalanx.launch.meeting import Gathering, Outcome, meet

# A call's place in an error is the user's line, not one of ours or of torch's, nor of what torch wraps functions in.
# Benchmarks call as users do.
_LIBRARY_FOLDERS = [
    *(str(part) for part in Path(__file__).resolve().parents[1].iterdir() if part.name != "bench"),
    str(Path(torch.__file__).parent),
    typing_extensions.__file__,
]


class SharedMemoryGroup(RankEndpoint):
    """A group of ranks of one host. The operations themselves are native, see phalanx.collectives.Group.

    Several threads may use it; each rank's collectives run in the order in which they were called.
    """

    def __init__(self, descriptor: int, rank: int, *, ranks: Sequence[int], is_thread: bool, timeout_s: float) -> None:
        """Attach to a segment as `rank`; phalanx.connect() and the methods below do that for you.

        Raises:
            RuntimeError: The segment is not a group's, or the rank is taken.
        """
        prepare_engine()
        open_gate()
        this = weakref.ref(self)
        super().__init__(
            descriptor, rank, is_thread, timeout_s, _LIBRARY_FOLDERS, lambda facts: _explain(this(), facts)
        )
        self._ranks = tuple(ranks)
        self._is_thread = is_thread
        self._meetings: Counter[str] = Counter()
        self._context = current_context()
        if self._context is not None:
            is_world = descriptor == self._context.descriptor
            if self._context.announce is not None and self.rank == 0 and not is_world:
                self._context.announce(descriptor)
            if self._context.interceptor is not None:
                self._set_interceptor(self._context.interceptor)
        answer_with_stacks()
        join_recording(self)
        add_living(self)

    def __repr__(self) -> str:
        state = " closed" if self.is_closed else ""
        return f'<SharedMemoryGroup "{self.name}" rank {self.rank} of {self.size}{state}>'

    @property
    def ranks(self) -> tuple[int, ...]:
        """The members as ranks of the parent group, in the order of this one."""
        return self._ranks

    def set_timeout(self, timeout_s: float | timedelta) -> None:
        """Set how long operations without a timeout of their own may take.

        Raises:
            UsageError: It is not positive.
        """
        self.timeout_s = _seconds(timeout_s, self.timeout_s)

    def __enter__(self) -> SharedMemoryGroup:
        enter_group(self)
        return self

    def __exit__(self, *_: object) -> None:
        leave_group()

    def coalescing(self, *, async_op: bool = False) -> Coalescing:
        """Record the calls inside a `with` block and launch them together at its end.

        With async_op=True, call wait() on the block after it.
        """
        return Coalescing(self, async_op)

    all_gather_object = objects.all_gather_object
    gather_object = objects.gather_object
    broadcast_object = objects.broadcast_object
    scatter_object = objects.scatter_object

    def all_gather_coalesced(
        self, outputs: Sequence[Sequence[torch.Tensor]], inputs: Sequence[torch.Tensor], *, async_op: bool = False
    ) -> CombinedWork | None:
        """Gather several tensors at once: rank i's inputs[k] arrives in outputs[i][k] on every rank.

        Raises:
            PhalanxError: As any collective.
        """
        lists = list(zip(*outputs, strict=True)) if outputs else []
        works = [
            self.all_gather(list(outputs_of_one), tensor, async_op=True)
            for outputs_of_one, tensor in zip(lists, inputs, strict=True)
        ]
        combined = CombinedWork(works)
        if async_op:
            return combined
        combined.wait()
        return None

    def empty(self, *shape: int, dtype: torch.dtype | None = None, timeout_s: Timeout = None) -> torch.Tensor:
        """Return an uninitialised tensor in memory that all ranks share: its all_reduce needs no copies.

        Every rank must call it, with the same shape and dtype.

        Raises:
            SharedMemoryError: The machine has not got the memory.
            MismatchError: Ranks ask for different sizes.
            OperationTimeoutError: Not every rank came.
        """
        self._require_open("empty")
        dtype = dtype or torch.get_default_dtype()
        count = torch.Size(shape).numel()
        size_bytes = count * dtype.itemsize
        number = self._meetings["symmetric tensor"]
        outcome = self._meet(
            "symmetric tensor",
            (self.rank, shape, str(dtype)),
            range(self.size),
            _seconds(timeout_s, self.timeout_s),
            create=lambda cards: create_symmetric_segment(f"{self.name}:symmetric", len(cards), size_bytes),
            check=_check_same_request,
        )
        try:
            region = self.adopt_symmetric(outcome.descriptor, number + 1)
        finally:
            os.close(outcome.descriptor)
        flat = from_dlpack(region)[:size_bytes]
        return flat.view(dtype).view(shape)

    def split(
        self, ranks: Sequence[int], *, name: str | None = None, timeout_s: Timeout = None
    ) -> SharedMemoryGroup | None:
        """Make a group of some of the ranks, in ascending order. Only its members need to call this.

        Returns:
            The new group; None on ranks that are not in it.

        Raises:
            UsageError: A rank is outside this group or given twice.
            OperationTimeoutError: A member did not come.
        """
        self._require_open("split")
        self._check_ranks(ranks)
        members = sorted(ranks)
        if self.rank not in members:
            return None
        listed = ",".join(map(str, members))
        number = self._meetings[f"split {listed}"] + 1
        own = f"{self.name}:split:{listed}" if number == 1 else f"{self.name}:split:{listed}:{number}"
        return self._regroup(f"split {listed}", members, name or own, timeout_s)

    def split_by_color(
        self, color: int | None, key: int = 0, *, name: str | None = None, timeout_s: Timeout = None
    ) -> SharedMemoryGroup | None:
        """Make one group per color; inside it ranks are ordered by key, then by rank. Every rank must call this.

        Returns:
            The group of this rank's color; None when the color is None.

        Raises:
            PhalanxError: As any collective.
        """
        table = self.all_gather_object((color, key))
        if color is None:
            return None
        members = sorted((its_key, rank) for rank, (its_color, its_key) in enumerate(table) if its_color == color)
        ordered = [rank for _, rank in members]
        return self._regroup(f"color {color}", ordered, name or f"{self.name}:color:{color}", timeout_s)

    def merge(self, place: str, size: int, *, name: str | None = None, timeout_s: Timeout = None) -> SharedMemoryGroup:
        """Become one group with others that meet at the same place, `size` ranks in all.

        Order: by the smallest rank that a group's members had in its parent, then by the group's name, then by chance;
        inside a group the ranks keep their order. `ranks` of the result counts from 0.

        Raises:
            UsageError: The groups disagree on the size, or more ranks came.
            OperationTimeoutError: Not all came.
        """
        self._require_open("merge")
        limit = _seconds(timeout_s, self.timeout_s)
        gathering = Gathering(
            name=f"merge at {place}",
            # Cards that disagree are complete too: order() refuses them at once.
            is_complete=lambda cards: len(cards) >= min(card[-1] for card in cards) or len({c[-1] for c in cards}) > 1,
            order=_order_merged,
            create=lambda cards: create_group_segment(name or f"merge:{place}", size, crowd=max(self.crowd, size)),
            describe_missing=lambda cards: f"{len(cards)} of {size} ranks came to merge",
            timeout_s=limit,
        )
        card = (min(self.ranks), self.name, self.nonce.hex(), self.rank, size)
        outcome = meet(gathering, card)
        return self._attach(outcome, range(size), limit)

    def shrink(self, *, without: Sequence[int] = (), timeout_s: Timeout = None) -> SharedMemoryGroup:
        """Make a group of the ranks that are left, also after this one is broken. Every survivor must call this.

        Args:
            without: Ranks to leave out although they live, because they hang.
            timeout_s: How long to wait for the survivors.

        Raises:
            UsageError: A rank is outside this group, or this rank is left out.
            OperationTimeoutError: A survivor did not come.
        """
        if without:
            self._check_ranks(without)
        if self.rank in without:
            raise UsageError(f"shrink: rank {self.rank} can't leave itself out")

        def survivors() -> list[int]:
            dead = {*self.find_dead(), *without}
            return [rank for rank in range(self.size) if rank not in dead]

        limit = _seconds(timeout_s, self.timeout_s)
        gathering = Gathering(
            name=f'shrink of group "{self.name}"|{self.nonce.hex()}|{self._next_meeting("shrink")}',
            is_complete=lambda cards: set(cards) >= set(survivors()),
            order=sorted,
            create=lambda cards: create_group_segment(f"{self.name}:shrunk", len(cards), crowd=len(cards)),
            describe_missing=lambda cards: self._describe_missing(set(survivors()) - set(cards)),
            missing=lambda cards: set(survivors()) - set(cards),
            timeout_s=limit,
        )
        outcome = meet(gathering, self.rank)
        return self._attach(outcome, outcome.cards, limit)

    def abort(self, reason: str = "") -> None:
        """Break the group: whoever waits in it, here or elsewhere, gets an AbortedError at once."""
        super().abort(reason)

    def close(self) -> None:
        """Wait for operations under way, then leave. Peers that still need this rank get a PeerLeftError."""
        try:
            if not self.is_closed:
                self.drain()  # Ctrl-C ends that
        finally:
            super().close()

    def _check_ranks(self, ranks: Sequence[int]) -> None:
        if not ranks:
            raise UsageError(f'group "{self.name}": a group needs at least one rank')
        for rank in ranks:
            if not 0 <= rank < self.size:
                raise UsageError(f'group "{self.name}": rank {rank} is outside; it has ranks 0 to {self.size - 1}')
        if len(set(ranks)) != len(ranks):
            raise UsageError(f'group "{self.name}": ranks {sorted(ranks)} name a rank twice')

    def _next_meeting(self, kind: str) -> int:
        self._meetings[kind] += 1
        return self._meetings[kind]

    def _meet(
        self, kind: str, card: tuple[Any, ...], members: Sequence[int], timeout_s: float, *, create: Any, check: Any
    ) -> Outcome:
        """Meet the members of this group; cards begin with the rank and come back in the members' order."""
        positions = {rank: position for position, rank in enumerate(members)}

        def order(cards: Sequence[tuple[Any, ...]]) -> Sequence[tuple[Any, ...]]:
            check(cards)
            return sorted(cards, key=lambda its_card: positions[its_card[0]])

        gathering = Gathering(
            name=f'{kind} of group "{self.name}"|{self.nonce.hex()}|{self._next_meeting(kind)}',
            is_complete=lambda cards: len(cards) == len(members),
            order=order,
            create=create,
            describe_missing=lambda cards: self._describe_missing(set(members) - {its[0] for its in cards}),
            timeout_s=timeout_s,
            check=lambda: self._check_members(kind, members),
            missing=lambda cards: set(members) - {its[0] for its in cards},
        )
        return meet(gathering, card)

    def _describe_missing(self, missing: Iterable[int]) -> str:
        """Say who has not come to a meeting, and what each does instead."""
        rows = self.snapshot()
        return describe_missing(
            Scene(self.name, self.rank, self.size, rows, around=look_around(self.nonce, rows, missing)), missing
        )

    def _check_members(self, kind: str, members: Sequence[int]) -> None:
        """Raise when a member has died or left, so that nobody waits for it in vain."""
        if not set(self.find_dead()).intersection(members):
            return
        self.find_dead()  # somebody may have left because of a death that was not known a moment ago
        rows = self.snapshot()
        gone = [rows[rank] for rank in members if rows[rank]["state"] in ("dead", "left")]
        row = next((row for row in gone if row["state"] == "dead"), gone[0])
        fault, rank = "peer_died" if row["state"] == "dead" else "peer_left", row["rank"]
        facts = {
            "kind": fault,
            "operation": kind,
            "culprit": rank,
            "reporter": self.rank,
            "text": "",
            "is_fatal": False,
        }
        around = look_around(self.nonce, rows, [rank])
        raise explain(facts, Scene(self.name, self.rank, self.size, rows, around=around))

    def _require_open(self, operation: str) -> None:
        if self.is_closed:
            raise explain({"kind": "closed", "operation": operation}, Scene(self.name, self.rank, self.size))

    def _regroup(self, kind: str, members: Sequence[int], name: str, timeout_s: Timeout) -> SharedMemoryGroup:
        limit = _seconds(timeout_s, self.timeout_s)
        outcome = self._meet(
            kind,
            (self.rank,),
            members,
            limit,
            create=lambda cards: create_group_segment(name, len(cards), crowd=self.crowd),
            check=lambda cards: None,
        )
        return self._attach(outcome, members, limit)

    def _attach(self, outcome: Outcome, ranks: Sequence[int], timeout_s: float) -> SharedMemoryGroup:
        try:
            group = SharedMemoryGroup(
                outcome.descriptor, outcome.position, ranks=ranks, is_thread=self._is_thread, timeout_s=timeout_s
            )
        finally:
            os.close(outcome.descriptor)
        group.watch(self)
        return group


def _seconds(timeout_s: Timeout, default: float) -> float:
    if timeout_s is None:
        return default
    value = timeout_s.total_seconds() if isinstance(timeout_s, timedelta) else float(timeout_s)
    if not value > 0:
        raise UsageError(f"a timeout of {value} s is not possible; give a positive number")
    return value


def _order_merged(cards: Sequence[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    sizes = sorted({card[-1] for card in cards})
    if sizes != [len(cards)]:
        raise UsageError(
            f"merge: {len(cards)} ranks came and gave the sizes {sizes}; all must give the number of ranks"
        )
    return sorted(cards)


def _check_same_request(cards: Sequence[tuple[Any, ...]]) -> None:
    if len({card[1:] for card in cards}) > 1:
        told = "; ".join(f"rank {rank} wants {dtype} {shape}" for rank, shape, dtype in sorted(cards))
        raise MismatchError(f"empty: ranks disagree on the symmetric tensor: {told}")


def _explain(group: SharedMemoryGroup | None, facts: Mapping[str, Any]) -> PhalanxError:
    if group is None:
        return explain(facts, Scene("", 0, 0))
    if facts["kind"] in ("usage", "closed", "forked"):
        return explain(facts, Scene(group.name, group.rank, group.size))
    rows = group.snapshot()
    seq = facts.get("fault_seq", 0) if facts["kind"] in ("mismatch", "timeout") else facts.get("seq", 0)
    entries = [group.entry(rank, seq) for rank in range(group.size)] if seq else []
    around = look_around(group.nonce, rows, late_ranks(facts, rows)) if facts["kind"] in _LATE else Surroundings()
    return explain(facts, Scene(group.name, group.rank, group.size, rows, entries, around))


_LATE = ("timeout", "peer_left")  # what the missing ranks do instead is the question
