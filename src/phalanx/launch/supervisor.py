"""The one supervisor of ranks: it watches them, frees them when one fails, ends them, and hears how each ended.

It knows the mechanism. The policy is a class derived from it: spawn(), an attempt of `phalanx run`, a task of a test.

    starting --> running ------------> finished --> ended
                    |                     ^
                    +-----> failed -------+

    starting   It has no process yet.
    running    Its process runs.
    failed     It has reported a failure, or its exit status shows one. A failure may be a consequence of another.
    finished   It has done its part. A rank of a test is finished when it has reported, and may then get another task.
               Any other rank is finished when its process has ended.
    ended      Its process has ended, and the launcher knows how. In the end every rank is here, whatever happens.

What may end a rank, and when:

- A rank may end by itself at any time.
- When a rank fails, the supervisor frees the others: it breaks the world and all groups of that rank, so that ranks
  that wait there raise. Ranks that do not end within the grace time get signals (see shutdown.py).
- The policy may end all ranks at any time: when the time is up, or when a person asks for it. This replaces an
  earlier shutdown.
- Signals go only to ranks that are not finished. If a rank fails after its first signal, that does not count.
- While a person debugs a rank, the clock stops: the deadline does not pass, and a grace time that began with a failure
  does not end. A shutdown that a person has asked for continues.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Sequence
from typing import Generic

from phalanx.launch.disagreement import Disagreement
from phalanx.launch.loop import Loop
from phalanx.launch.rank import AnyRank, Starter, settle_disagreements
from phalanx.launch.shutdown import AFTER_FAILURE, Escalation, Shutdown
from phalanx.launch.world_watch import WorldWatch


class Supervisor(Generic[AnyRank]):
    """The ranks of one launch, and a loop that waits for all events of these ranks. Not for several threads.

    Args:
        ranks: All ranks, in order.
        watch: Their groups.
        grace_s: The grace time after each signal of a shutdown.
        deadline: When the time is up; None for no limit.
        loop: The loop that waits.
    """

    after_failure: Escalation = AFTER_FAILURE

    def __init__(
        self,
        ranks: Sequence[AnyRank],
        watch: WorldWatch,
        *,
        grace_s: float,
        deadline: float | None = None,
        loop: Loop | None = None,
    ) -> None:
        self.ranks = ranks
        self.watch = watch
        self.loop = loop or Loop()
        self.shutdown = Shutdown(grace_s)
        self.deadline = deadline
        self._starter: Starter | None = None
        self._have_started = False
        self._dead: set[int] = set()  # ranks whose groups know that they have ended
        self._paused_at: float | None = None
        self._is_patient = True  # whether the current shutdown waits while a person debugs a rank

    # Methods that policies override.

    def on_started(self) -> None:
        """Called when the ranks have processes."""

    def on_end(self, rank: AnyRank) -> bool:
        """Called when a rank's process has ended: read its last messages, and call fail() if it should not have ended.

        Returns:
            Whether the rank has ended regularly, so that no peer waits for it.
        """
        return rank.status == 0

    def on_deadline(self) -> None:
        """Called when the time is up."""

    def before_shutdown(self, rank: AnyRank) -> None:
        """Called when the first rank has failed, before its peers get the reason."""

    def before_signal(self, number: signal.Signals) -> None:
        """Called before ranks that are not finished get this signal."""

    # Methods that policies call.

    @property
    def unfinished(self) -> list[AnyRank]:
        """The ranks that have not done their part."""
        return [rank for rank in self.ranks if not rank.is_finished]

    @property
    def is_over(self) -> bool:
        """Whether all ranks and all processes that they have started have ended."""
        return self._starter is not None and self._starter.is_over

    def listen_to(self, starter: Starter) -> None:
        """Read news of the ranks from their starter."""
        self._starter = starter
        self._have_started = any(rank.pid for rank in self.ranks)
        self.loop.on(starter.fileno(), self._hear)
        for rank in self.ranks:
            if rank.status is not None:
                self._end(rank)

    def turn(self, *, until: float | None = None) -> None:
        """Wait for the next event, or until that time, and handle it."""
        # An exception, such as pytest-timeout's, may have come between the end of a rank and its judgement.
        missed = [rank for rank in self.unfinished if rank.status is not None]
        for rank in missed:
            self._end(rank)
        if missed:
            return
        self.loop.turn(self._patience_s(until))
        is_up = self.deadline is not None and time.monotonic() >= self.deadline
        if is_up and not self.is_paused and not self.shutdown.has_begun:
            self.on_deadline()
        if self.shutdown.is_due() and not self._waits_for_person():
            self._escalate()

    def fail(
        self,
        rank: AnyRank,
        why: str = "",
        *,
        is_consequence: bool = False,
        disagreement: Disagreement | None = None,
    ) -> None:
        """Note a rank's failure and free the others; without a reason, they are freed when its process ends."""
        if not rank.fail(is_consequence=is_consequence, disagreement=disagreement):
            return
        settle_disagreements(self.ranks)
        if not self.shutdown.has_begun:
            self.before_shutdown(rank)
        if why:
            self.watch.fail(rank, why)
        if not self.shutdown.has_begun:
            self._is_patient = True
            self._begin(self.after_failure)

    def declare_dead(self, rank: AnyRank, *, look: bool = True) -> None:
        """Tell a rank's groups that its process has ended; with `look`, find these groups first."""
        if rank.number not in self._dead:
            self._dead.add(rank.number)
            if look:
                self.watch.look(self.ranks)  # later groups have their own memory, which other ranks keep open
            self.watch.declare_dead(rank)

    def free_ranks(self) -> None:
        """End all ranks as after a failure of one of them, because of a failure somewhere else."""
        self._is_patient = True
        self._begin(self.after_failure)

    def end_ranks(self, escalation: Escalation) -> None:
        """End all ranks that are not finished: send these signals, the first of them now."""
        self._is_patient = False
        self._begin(escalation)

    @property
    def is_paused(self) -> bool:
        """Whether a person debugs a rank."""
        return self._paused_at is not None

    def pause(self) -> None:
        """Stop the clock."""
        self._paused_at = time.monotonic()

    def resume(self) -> None:
        """Let the clock continue."""
        if self._paused_at is None:
            return
        now, paused_at, self._paused_at = time.monotonic(), self._paused_at, None
        if self.deadline is not None:
            self.deadline += now - paused_at
        if self.shutdown.due_at is not None and self._is_patient:
            self.shutdown.due_at += now - max(paused_at, self.shutdown.escalated_at)

    # The mechanism.

    def _begin(self, escalation: Escalation) -> None:
        self.shutdown.begin(escalation)
        self._escalate()

    def _escalate(self) -> None:
        number = self.shutdown.escalate()
        if number is not None:
            self.before_signal(number)
            self._send(number)

    def _send(self, number: signal.Signals) -> None:
        for rank in self.unfinished:
            rank.send(number)

    def _waits_for_person(self) -> bool:
        return self.is_paused and self._is_patient

    def _patience_s(self, until: float | None) -> float | None:
        moments = [until, None if self._waits_for_person() else self.shutdown.due_at]
        if not self.is_paused and not self.shutdown.has_begun:
            moments.append(self.deadline)
        known = [moment for moment in moments if moment is not None and moment != float("inf")]
        return max(0.0, min(known) - time.monotonic()) if known else None

    def _hear(self) -> None:
        assert self._starter is not None
        ended = self._starter.read()
        if not self._have_started and any(rank.pid for rank in self.ranks):
            self._have_started = True
            for rank in self.ranks:
                self.watch.note_start(rank)
            if self.shutdown.latest is not None:
                self._send(self.shutdown.latest)  # it was sent before the ranks were known
            self.on_started()
        for place in [rank.index for rank in ended]:
            self._end(self.ranks[place])

    def _end(self, rank: AnyRank) -> None:
        is_first = not self.shutdown.has_begun
        is_well = self.on_end(rank)
        rank.is_finished = True
        self.declare_dead(rank, look=is_first and not is_well)
