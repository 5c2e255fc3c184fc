"""SharedMemoryGroup: ranks of one machine, processes or threads, over the native engine."""

from __future__ import annotations

import functools
import math
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import typing_extensions
from torch.utils.dlpack import from_dlpack

from phalanx.collectives import Group, Timeout, Work, seconds_of
from phalanx.diagnosis import Scene, explain
from phalanx.diagnosis.explain import late_ranks
from phalanx.diagnosis.stacks import answer_with_stacks
from phalanx.diagnosis.surroundings import Surroundings, look_around
from phalanx.engine import (
    RankEndpoint,
    create_symmetric_segment,
    naming_shortage,
    own_affinity,
)
from phalanx.engine.facts import Trouble
from phalanx.errors import PhalanxError, UsageError
from phalanx.groups import objects
from phalanx.groups.coalescing import Coalescing, CombinedWork, launch_all
from phalanx.groups.cuda import prepare_engine
from phalanx.groups.current import enter_group, leave_group
from phalanx.groups.deadlock_watch import watch_for_deadlocks
from phalanx.groups.open_groups import add_open_group, is_program_over
from phalanx.groups.regrouping import (
    check_same_request,
    create_for,
    describe_members,
    gathering_of,
    meet_in,
    order_merged,
    sizes_in,
)
from phalanx.groups.tensor_gate import open_gate
from phalanx.groups.tracing import join_recording
from phalanx.launch.context import current_context, part_of_rank
from phalanx.launch.meeting import Gathering, MeetingResult, closing
from phalanx.launch.user_secret import make_private

# An error shows the user's line of a call, not a line of phalanx, of torch, or of the wrappers that torch uses.
_LIBRARY_FOLDERS = [
    str(Path(__file__).resolve().parents[1]),
    str(Path(torch.__file__).parent),
    typing_extensions.__file__,
]

_LARGEST_BYTES = 1 << 52  # more than any machine has; the sum over all ranks of a group still fits in 64 bits


class SharedMemoryGroup(RankEndpoint):
    """A group of ranks of one machine. The operations are native; phalanx.collectives.Group documents them.

    Several threads may use it; each rank's collectives run in the order in which they were called.
    """

    def __init__(self, descriptor: int, rank: int, *, ranks: Sequence[int], is_thread: bool, timeout_s: float) -> None:
        """Attach to a segment as `rank`. Use phalanx.connect() or the methods below instead.

        Raises:
            RuntimeError: The segment does not belong to a group, or another process has this rank.
        """
        prepare_engine()
        open_gate()
        this = weakref.ref(self)
        with naming_shortage(f"rank {rank} of a group of {len(ranks)}"):
            super().__init__(
                descriptor, rank, is_thread, timeout_s, _LIBRARY_FOLDERS, lambda facts: _explain(this(), facts)
            )
        self._ranks = tuple(ranks)
        self._is_thread = is_thread
        self._meetings: Counter[str] = Counter()
        self._thread = threading.get_ident()
        self._context = current_context()
        if self._context is not None and self._context.interceptor is not None:
            self._set_interceptor(self._context.interceptor)
        answer_with_stacks()
        join_recording(self)
        add_open_group(self, self._context)
        watch_for_deadlocks()

    def __repr__(self) -> str:
        state = " closed" if self.is_closed else ""
        return f'<SharedMemoryGroup "{self.name}" rank {self.rank} of {self.size}{state}>'

    def __dir__(self) -> list[str]:
        """List what programs use of a group, for editors and for the completion of Python's prompt."""
        of_python = [name for name in super().__dir__() if name.startswith("__") and name.endswith("__")]
        return sorted({*of_python, *(name for name in dir(Group) if not name.startswith("_"))})

    @property
    def ranks(self) -> tuple[int, ...]:
        """The number of each member in the parent group, in the order of this group."""
        return self._ranks

    def set_timeout(self, timeout_s: float | timedelta) -> None:
        """Set the timeout of operations that have none of their own.

        Raises:
            UsageError: The timeout is not positive.
        """
        self.timeout_s = seconds_of(timeout_s, self.timeout_s)

    def __enter__(self) -> SharedMemoryGroup:
        enter_group(self)
        return self

    def __exit__(self, *_: object) -> None:
        leave_group()

    def coalescing(self, *, async_op: bool = False) -> Coalescing:
        """Record the calls inside a `with` block and launch them together at its end.

        With async_op=True, call wait() of the block afterwards.
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
        if any(len(outputs_of_rank) != len(inputs) for outputs_of_rank in outputs):
            message = f"outputs must have {len(inputs)} tensors for each rank, as many as inputs"
            refusals = [self.refuse("all_gather", message) for _ in range(max(1, len(inputs)))]
            raise refusals[0]
        lists = list(zip(*outputs, strict=True)) if outputs else []
        gather: Callable[..., Work] = self.all_gather  # partial() knows no overloads
        combined = CombinedWork(launch_all(self.refuse, [
            ("all_gather", functools.partial(gather, list(outputs_of_one), tensor, async_op=True))
            for outputs_of_one, tensor in zip(lists, inputs, strict=True)
        ]))  # fmt: skip
        if async_op:
            return combined
        combined.wait()
        return None

    def empty(self, *shape: int, dtype: torch.dtype | None = None, timeout_s: Timeout = None) -> torch.Tensor:
        """Return an uninitialised tensor in memory that all ranks share, so that all_reduce needs no copies.

        Every rank must call it, with the same shape and dtype.

        Raises:
            UsageError: The shape is negative or larger than any memory.
            SharedMemoryError: There is not enough memory.
            MismatchError: Ranks ask for different shapes or dtypes.
            OperationTimeoutError: Not every rank made the call in time.
        """
        self._require_open("empty")
        dtype = dtype or torch.get_default_dtype()
        size_bytes = math.prod(shape) * dtype.itemsize
        if min(shape, default=0) < 0 or size_bytes > _LARGEST_BYTES:
            raise UsageError(f'empty of group "{self.name}": a tensor of shape {shape} and {dtype} is not possible')
        number = self._meetings["symmetric tensor"]

        def adopt(outcome: MeetingResult) -> Any:
            with closing(outcome) as descriptor:
                with naming_shortage(f"a symmetric tensor of {self.size} ranks"):
                    return self.adopt_symmetric(descriptor, number + 1)

        gathering = gathering_of(
            self,
            "symmetric tensor",
            self.next_meeting("symmetric tensor"),
            range(self.size),
            seconds_of(timeout_s, self.timeout_s),
            create=lambda cards: create_symmetric_segment(f"{self.name}:symmetric", len(cards), size_bytes),
            check=check_same_request,
        )
        region = meet_in(self, gathering, (self.rank, shape, str(dtype)), adopt)
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
            OperationTimeoutError: A member did not make the call in time.
        """
        members = self._members_of_split(ranks)
        if not members:
            return None
        kind = f"split {','.join(map(str, members))}"
        return self._regroup(kind, members, name or self._name_of_split(members, kind), timeout_s)

    def _members_of_split(self, ranks: Sequence[int]) -> list[int]:
        """Check the ranks of a sub-group and return them in order; return none if this rank is not one of them."""
        self._require_open("split")
        self._check_ranks(ranks)
        return sorted(ranks) if self.rank in ranks else []

    def _name_of_split(self, members: Sequence[int], kind: str) -> str:
        """Return the name of a sub-group that has none; `kind` is the kind of its meetings."""
        own = f"{self.name}:split:{','.join(map(str, members))}"
        number = self._meetings[kind] + 1
        return own if number == 1 else f"{own}:{number}"

    def split_by_color(
        self, color: int | None, key: int = 0, *, name: str | None = None, timeout_s: Timeout = None
    ) -> SharedMemoryGroup | None:
        """Make one group per color, with its ranks in the order of their keys. Every rank must call this.

        Returns:
            The group of this rank's color; None if the color is None.

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
        """Make one group of all ranks that call this with the same place, `size` ranks in all.

        The groups come in the order of the smallest number in their `ranks`, then of their names, then in any order.
        Inside each group, the ranks keep their order. `ranks` of the result counts from 0.

        Raises:
            UsageError: The groups disagree on the size, or more ranks came.
            OperationTimeoutError: Not all ranks came in time.
        """
        self._require_open("merge")
        limit = seconds_of(timeout_s, self.timeout_s)
        gathering = Gathering(
            name=make_private(f"merge at {place}"),
            # Cards that disagree are complete too: order() refuses them at once.
            is_complete=lambda cards: len(cards) >= min(sizes_in(cards)) or len(sizes_in(cards)) > 1,
            order=order_merged,
            create=lambda cards: create_for(name or f"merge:{place}", cards, crowd=self.crowd),
            describe_missing=lambda cards: f"{len(cards)} of {size} ranks came to merge",
            timeout_s=limit,
        )
        card = (min(self.ranks), self.name, self.nonce.hex(), self.rank, size, own_affinity())
        return self._join(gathering, card, lambda cards: range(size))

    def shrink(self, *, without: Sequence[int] = (), timeout_s: Timeout = None) -> SharedMemoryGroup:
        """Make a group of the ranks that are alive, even if this group is broken. Every survivor must call this.

        Args:
            without: Ranks to leave out although they are alive, for example because they hang.
            timeout_s: How long to wait for the survivors.

        Raises:
            UsageError: A rank is outside this group, or this rank is left out.
            OperationTimeoutError: A survivor did not make the call in time.
        """
        if without:
            self._check_ranks(without)
        if self.rank in without:
            raise UsageError(f"shrink: rank {self.rank} can't leave itself out")

        def survivors() -> list[int]:
            dead = {*self.find_dead(), *without}
            return [rank for rank in range(self.size) if rank not in dead]

        def missing(cards: Sequence[tuple[int, str]]) -> set[int]:
            return set(survivors()) - {card[0] for card in cards}

        limit = seconds_of(timeout_s, self.timeout_s)
        gathering = Gathering(
            name=f'shrink of group "{self.name}"|{self.nonce.hex()}|{self.next_meeting("shrink")}',
            is_complete=lambda cards: not missing(cards),
            order=sorted,
            create=lambda cards: create_for(f"{self.name}:shrunk", cards, crowd=len(cards)),
            describe_missing=lambda cards: describe_members(self, missing(cards)),
            missing=missing,
            timeout_s=limit,
            rank_of=lambda card: int(card[0]),
        )
        return self._join(gathering, (self.rank, own_affinity()), lambda cards: [card[0] for card in cards])

    def abort(self, reason: str = "") -> None:
        """Break the group: every rank that waits in it gets an AbortedError at once."""
        super().abort(reason)

    def close(self) -> None:
        """Wait for operations under way, then leave the group. Peers that still need this rank get a PeerLeftError."""
        try:
            if not self.is_closed:
                self.drain()  # until all operations have ended, or Ctrl-C
        finally:
            self.leave()

    def __del__(self) -> None:
        """Note why this rank leaves if the last reference went with the rank's function, and not before its end."""
        # Without the attribute, it has not joined; once closed, the interpreter may be taking itself apart.
        is_member = hasattr(self, "_thread") and not self.is_closed
        if is_member and self._thread == threading.get_ident() and is_program_over():
            self._note_end()

    def leave(self) -> None:
        """Leave at once; operations under way fail."""
        super().close()

    def explain_trouble(self, facts: Trouble) -> PhalanxError:
        """Return the exception for a call of this rank that could not be finished."""
        if facts.kind in ("usage", "closed", "forked"):
            return explain(facts, Scene(self.name, self.rank, self.size))
        rows = self.snapshot()
        seq = facts.fault_seq if facts.kind in ("mismatch", "timeout") else facts.seq
        entries = [self.entry(rank, seq) for rank in range(self.size)] if seq else []
        around = look_around(self.nonce, rows, late_ranks(facts, rows)) if facts.kind in LATE else Surroundings()
        return explain(facts, Scene(self.name, self.rank, self.size, rows, entries, around, part_of_rank()))

    def _check_ranks(self, ranks: Sequence[int]) -> None:
        if not ranks:
            raise UsageError(f'group "{self.name}": a group needs at least one rank')
        for rank in ranks:
            if not 0 <= rank < self.size:
                raise UsageError(f'group "{self.name}": rank {rank} is outside; it has ranks 0 to {self.size - 1}')
        if len(set(ranks)) != len(ranks):
            raise UsageError(f'group "{self.name}": a rank occurs twice in {sorted(ranks)}')

    def next_meeting(self, kind: str) -> int:
        """Count the meetings of this kind: ranks that have made the same calls get the same number."""
        self._meetings[kind] += 1
        return self._meetings[kind]

    def _join(
        self, gathering: Gathering, card: tuple[Any, ...], ranks_of: Callable[[Sequence[Any]], Sequence[int]]
    ) -> SharedMemoryGroup:
        """Meet other ranks, and join the new group."""

        def attach(outcome: MeetingResult) -> SharedMemoryGroup:
            with closing(outcome) as descriptor:
                group = SharedMemoryGroup(
                    descriptor,
                    outcome.position,
                    ranks=ranks_of(outcome.cards),
                    is_thread=self._is_thread,
                    timeout_s=gathering.timeout_s,
                )
            group.watch(self)
            return group

        group: SharedMemoryGroup = meet_in(self, gathering, card, attach, SharedMemoryGroup.close)
        return group

    def _require_open(self, operation: str) -> None:
        if self.is_closed:
            raise explain(Trouble("closed", operation), Scene(self.name, self.rank, self.size))

    def _regroup(self, kind: str, members: Sequence[int], name: str, timeout_s: Timeout) -> SharedMemoryGroup:
        limit = seconds_of(timeout_s, self.timeout_s)
        gathering = gathering_of(
            self,
            kind,
            self.next_meeting(kind),
            members,
            limit,
            create=lambda cards: create_for(name, cards, crowd=self.crowd),
            check=lambda cards: None,
        )
        return self._join(gathering, (self.rank, own_affinity()), lambda cards: members)


def _explain(group: SharedMemoryGroup | None, facts: Trouble) -> PhalanxError:
    return explain(facts, Scene("", 0, 0)) if group is None else group.explain_trouble(facts)


LATE = ("timeout", "peer_left")  # the error then says what the missing ranks do instead
