"""Prove that ranks can never go on, because everything that they wait for needs a call of one of them.

One snapshot is not enough, because ranks are not read at the same moment, and a rank that sleeps may have something to
wake up for. So the proof needs two. Both show the same ranks asleep in the same operations, each with the only thread
that calls its operations; and all that they have under way needs others of these ranks:

- In a collective, a peer that has not come to it. A rank that waits for the data of a peer that has come is at work.
- In send or recv, the peer. None of the ranks has moved a part of any message between the snapshots.

Between the snapshots, each rank has looked in vain for what it waits for, and has gone to sleep again. So it does not
run a handler of a signal, it is not stopped, and nothing was on its way to it. Only a call of one of them could wake
one.

A thread that has never called an operation may still do so. If such a thread of one of their processes has a function
of the program on its stack, nothing is certain. If such threads run only code of libraries, the ranks must have slept
for much longer.

Pure functions over snapshots: no waiting, no I/O, so every case can be tested from literals.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from phalanx.diagnosis import formatting
from phalanx.diagnosis.views import GroupView
from phalanx.diagnosis.waits import Key, Wait, describe_cycle, find_circle, find_waits, key_of, world_of
from phalanx.engine.facts import SEVERAL, RankFacts

_SHOWN_WAITS = 8  # a fault has room for 2 KiB of text
# After this number, a look has begun and ended in vain since the count was read for the first time.
_MORE_LOOKS = 2
# How long ranks must have been stuck if other threads run code of libraries in one of their processes.
PATIENCE_WITH_THREADS_S = 30.0


@dataclass(frozen=True)
class StuckRank:
    """A rank that can't go on before another rank makes a call.

    Attributes:
        waits: What it waits for, in which groups; only those keys whose call is missing.
        rows: What its groups say of it, by the nonce of the group.
    """

    waits: tuple[Wait, ...]
    rows: dict[str, RankFacts]

    def needs(self, stuck: Collection[Key]) -> bool:
        """Tell whether none of its waits can end without a call of one of these ranks."""
        return all((all if wait.is_any else any)(key in stuck for key in wait.keys) for wait in self.waits)

    def is_like(self, before: StuckRank) -> bool:
        """Tell whether it has moved nothing since an earlier look, and is in the same operations."""
        is_same = [_identity(wait) for wait in self.waits] == [_identity(wait) for wait in before.waits]
        return (
            is_same
            and self.rows.keys() == before.rows.keys()
            and all(row.mail_moves == before.rows[nonce].mail_moves for nonce, row in self.rows.items())
        )

    def has_looked(self, before: StuckRank) -> bool:
        """Tell whether it has looked for messages in vain since an earlier look at it."""
        return all(_has_looked(before.rows[nonce], row) for nonce, row in self.rows.items())


def _identity(wait: Wait) -> tuple[object, ...]:
    return (wait.key, wait.nonce, wait.entry.operation, wait.entry.seq, wait.entry.start_ns, wait.keys)


def _has_looked(before: RankFacts, now: RankFacts) -> bool:
    is_in_collective = now.sleeps_for >= 0
    is_in_mail = now.mail is not None and not now.mail.end_ns
    counts = (
        (is_in_collective, before.looks, now.looks),
        (now.awaits_work, before.work_looks, now.work_looks),
        (is_in_mail, before.mail_looks, now.mail_looks),
        (now.background_mail > 0, before.background_looks, now.background_looks),
    )
    return all(count >= earlier + _MORE_LOOKS for is_needed, earlier, count in counts if is_needed)


@dataclass(frozen=True)
class Deadlock:
    """Ranks of which none can go on, if a later snapshot confirms it.

    Attributes:
        ranks: The ranks.
    """

    ranks: dict[Key, StuckRank]

    def is_like(self, before: Deadlock) -> bool:
        """Tell whether this snapshot shows the same as an earlier one."""
        return self.ranks.keys() == before.ranks.keys() and all(
            rank.is_like(before.ranks[key]) for key, rank in self.ranks.items()
        )

    def confirms(self, before: Deadlock, elapsed_s: float) -> bool:
        """Tell whether this snapshot proves what an earlier one suggested so long ago."""
        rows = [row for rank in self.ranks.values() for row in rank.rows.values()]
        threads = {row.other_threads for row in rows}
        if not threads.isdisjoint(("unknown", "program")):
            return False
        if "libraries" in threads and elapsed_s < PATIENCE_WITH_THREADS_S:
            return False
        return self.is_like(before) and all(rank.has_looked(before.ranks[key]) for key, rank in self.ranks.items())

    @property
    def waits(self) -> list[Wait]:
        """All their waits."""
        return [wait for rank in self.ranks.values() for wait in rank.waits]

    def describe(self) -> str:
        """Say in the first line which ranks wait for each other, and in a line for each of them in which operation."""
        circle = find_circle([_within(wait, self.ranks) for wait in self.waits])
        if not circle:
            wait = next((each for each in self.waits if each.key in each.keys), self.waits[0])
            return f"rank {wait.rank} waits for itself\nrank {wait.rank} is in {wait.text}"
        lines = describe_cycle(circle)
        if len(lines) > _SHOWN_WAITS:
            lines[_SHOWN_WAITS:] = [f"and {len(lines) - _SHOWN_WAITS} more ranks; the last one waits for the first"]
        ranks = formatting.rank_list(sorted({wait.rank for wait in circle}))
        return "\n".join([f"{ranks} wait for each other", *lines])


def _within(wait: Wait, ranks: Collection[Key]) -> Wait:
    """Return the wait with those of its keys that are among the ranks."""
    numbers = dict(zip(wait.keys, wait.waits_for, strict=True))
    kept = {key: number for key, number in numbers.items() if key in ranks}
    return replace(wait, keys=tuple(kept), waits_for=tuple(kept.values()))


def find_deadlock(views: Sequence[GroupView], known: Collection[int]) -> Deadlock | None:
    """Return the ranks that can't go on if these groups stay as they are; None if there are none.

    Args:
        views: The groups.
        known: The processes of which `views` has all groups.
    """
    rows: dict[Key, dict[str, RankFacts]] = {}
    for view in views:
        for row in view.rows:
            if row.state == "present" and key_of(row)[0] in known:
                # In a broken group nobody waits any more, but the journal still shows what its ranks were doing.
                is_over = view.fault is not None
                rows.setdefault(key_of(row), {})[view.nonce] = row._replace(entry=None, mail=None) if is_over else row
    waits: dict[Key, list[Wait]] = {}
    for wait in find_waits(views, world_of([view for view in views if view.fault is None])):
        if wait.key in rows and not (wait.entry.is_message and wait.entry.end_ns):  # a message may have ended just now
            waits.setdefault(wait.key, []).append(_only_awaited(wait, rows))
    stuck = {key: StuckRank(tuple(waits[key]), rows[key]) for key in waits if _sleeps(waits[key], rows[key])}
    while free := [key for key, rank in stuck.items() if not rank.needs(stuck)]:
        for key in free:
            del stuck[key]
    return Deadlock(stuck) if stuck else None


def _only_awaited(wait: Wait, rows: Mapping[Key, Mapping[str, RankFacts]]) -> Wait:
    """Return a wait in a collective with those peers that have not come to it, as far as is known."""
    if wait.entry.is_message:
        return wait
    peers = {key: rows[key].get(wait.nonce) for key in wait.keys if key in rows}
    return _within(wait, [key for key, peer in peers.items() if peer is not None and peer.arrived < wait.entry.seq])


def _sleeps(waits: Sequence[Wait], rows: dict[str, RankFacts]) -> bool:
    """Tell whether a rank can neither make another call nor go on with one before one of its waits ends."""
    callers = {row.caller for row in rows.values()} - {0}
    backward_callers = {row.backward_caller for row in rows.values()} - {0}
    if any(len(threads) > 1 or SEVERAL in threads for threads in (callers, backward_callers)):
        return False  # another thread may make the call that is missing
    if any(row.is_debugged or not row.is_here for row in rows.values()):
        return False
    if any(wait.entry.may_do_more for wait in waits):
        return False
    if any(not wait.entry.is_message and rows[wait.nonce].collective is None for wait in waits):
        return False  # it is so far ahead that it waits before it begins, and its entry is of the operation before
    in_collectives = {wait.nonce for wait in waits if not wait.entry.is_message}
    if any(row.collective is not None and nonce not in in_collectives for nonce, row in rows.items()):
        return False  # it is at work in a group
    # A thread that sleeps for a message is the caller, or else the message "may do more".
    return any(wait.entry.is_message or not wait.is_async or rows[wait.nonce].awaits_work for wait in waits)
