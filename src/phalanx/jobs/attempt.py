"""One attempt of a job: it forks the ranks and handles every event until they have ended."""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import time
from typing import TYPE_CHECKING

from phalanx.engine import GroupSegment
from phalanx.errors import InternalError
from phalanx.jobs.holdups import Holdups, describe_holdup
from phalanx.jobs.host import Host
from phalanx.jobs.job import Job
from phalanx.jobs.job_result import TIMED_OUT_EXIT_CODE, JobResult
from phalanx.jobs.loop import OutputLoop
from phalanx.jobs.rank import JobRank
from phalanx.jobs.start_request import make_start_request
from phalanx.jobs.streams import Pipes, open_pipes, open_stdin
from phalanx.jobs.summary import describe_activity, describe_children
from phalanx.jobs.tracebacks import Tracebacks
from phalanx.jobs.watch import JobWatch
from phalanx.launch.rank_process import StartRequest
from phalanx.launch.rendezvous import open_rendezvous
from phalanx.launch.shutdown import WHEN_TIME_IS_UP, after_signal
from phalanx.launch.supervisor import Supervisor
from phalanx.launch.terminal import TerminalDesk
from phalanx.launch.zygote_ranks import ZygoteRanks

if TYPE_CHECKING:
    from phalanx.diagnosis.observation import Observation

_BETWEEN_LOOKS_S = 0.25
_BETWEEN_UNSEEN_LOOKS_S = 1.0  # short enough to find a rank's groups before it dies


class Attempt(Supervisor[JobRank]):
    """The policy of `phalanx run`: it starts ranks and watches them until they and their children have ended.

    Args:
        job: The job.
        host: What all attempts of a job have in common.
        world: The memory of the ranks' world.
        deadline: When the job's time is up, or None.
    """

    watch: JobWatch
    loop: OutputLoop
    _pipes: Pipes
    _tracebacks: Tracebacks

    def __init__(self, job: Job, host: Host, world: GroupSegment, deadline: float | None) -> None:
        first = 0 if host.others is None else host.others.first_rank
        ranks = [JobRank(first + place, first=first) for place in range(job.num_ranks)]
        loop = OutputLoop(host.view, host.logs)
        super().__init__(ranks, JobWatch(world), grace_s=job.grace_s, deadline=deadline, loop=loop)
        self._job = job
        self._host = host
        self._view = host.view
        self._outcome = JobResult("done", ranks)
        self._zygote_ranks = ZygoteRanks(ranks)
        self._look_at = self._watch_at = 0.0
        self._holdups = Holdups(job.warn_after_s)
        self._desk = TerminalDesk(self._pause_view, self._resume_view)

    # Methods that an attempt on several hosts overrides.

    def listening(self) -> contextlib.AbstractContextManager[None]:
        """Listen to others than the ranks, as long as the context is open."""
        return contextlib.nullcontext()

    def on_purpose(self, what: str, exit_code: int) -> None:
        """Called when this launcher ends the job, and no rank has failed."""

    def after_ranks(self) -> None:
        """Called when all ranks here have ended."""

    def run(self, num_restarts: int) -> JobResult:
        """Start the ranks, and return when they and all processes that they have started are gone.

        Args:
            num_restarts: How often the ranks were restarted before.

        Raises:
            InternalError: The process that ranks are forked from did not start.
            RankFailedError: A rank's process could not be started.
            OSError: There are not enough descriptors.
        """
        with contextlib.ExitStack() as cleanup:
            cleanup.callback(self.loop.close)
            cleanup.callback(self.watch.close)
            cleanup.callback(self._desk.close)
            rendezvous = cleanup.enter_context(open_rendezvous())
            pipes = self._pipes = cleanup.enter_context(open_pipes(self.ranks))
            self._tracebacks = Tracebacks(self.ranks, pipes, self._view, self._host.logs, self._host.kept)
            starter = cleanup.enter_context(self._zygote_ranks)
            self.loop.on(self._host.inbox.fileno(), self._read_signals)
            self.loop.on(self._host.zygote_output.descriptor, self._read_zygote)
            cleanup.enter_context(self.listening())
            if not self._await_zygote():
                return self._outcome
            self.loop.on(self._desk.descriptor(), self._serve_terminal)
            request = make_start_request(self._job, self._host, rendezvous, num_restarts, terminal=self._desk.name)
            self._start(starter, request, pipes)
            self.listen_to(starter)
            self._look_after(pipes)
        return self._outcome

    def _start(self, starter: ZygoteRanks, request: StartRequest, pipes: Pipes) -> None:
        stdin = open_stdin()
        try:
            starter.start(request, [self.watch.world.descriptor, stdin, *pipes.theirs], self._host.zygote)
        finally:
            os.close(stdin)
        pipes.close_theirs()

    def _look_after(self, pipes: Pipes) -> None:
        for rank in self.ranks:
            self.loop.on(pipes.failures[rank.index], functools.partial(self._read_failure, rank))
        self.loop.add_streams(pipes.streams)
        while not self.is_over:
            self._turn()
        self.after_ranks()
        for rank in self.ranks:
            self._read_failure(rank)
        for stream in pipes.streams:
            stream.drain(self._view, self._host.logs)
        self._tracebacks.finish(is_elsewhere=self._outcome.is_elsewhere, seen=self._outcome.seen)
        self._view.update(self.ranks)

    def _await_zygote(self) -> bool:
        """Wait until ranks can be forked; return False if the job has to end before that."""
        zygote = self._host.zygote
        if not zygote.is_ready:
            self.loop.on(zygote.fileno(), self._greet_zygote)
        while not zygote.is_ready and not self.shutdown.has_begun:
            self._turn()
        return zygote.is_ready and not self.shutdown.has_begun

    def _greet_zygote(self) -> None:
        self.loop.off(self._host.zygote.fileno())
        try:
            self._host.zygote.await_ready()
        except InternalError:
            self._host.zygote_output.drain()
            self._host.check_refusal()
            raise

    def _turn(self) -> None:
        self.turn(until=self._look_at)
        if not self.shutdown.has_begun and any(writer.is_broken for writer in self._view.writers()[:1]):
            self._interrupt(signal.SIGPIPE)  # as for any program whose output nobody reads
        if time.monotonic() >= self._look_at:
            self._look_at = time.monotonic() + _BETWEEN_LOOKS_S
            self._look()

    def _look(self) -> None:
        self.loop.show_progress()
        now = time.monotonic()
        if not self.shutdown.has_begun and (self._view.is_watching or now >= self._watch_at):
            self._watch_at = now + _BETWEEN_UNSEEN_LOOKS_S
            self.watch.note_activity(self.ranks)
            self._warn_of_holdups()
        if self._view.is_watching:
            for rank in self.ranks:
                rank.measure_memory()
        self._view.update(self.ranks)

    def _warn_of_holdups(self) -> None:
        if self.is_paused or not self._holdups.is_due(self.watch.observer.waits, time.monotonic_ns()):
            return
        seen = self.watch.describe(self.ranks, self._host.record.view, "")
        for line in describe_holdup(seen):
            self._view.say(f"phalanx run: {line}")

    def _serve_terminal(self) -> None:
        """Give the terminal to a rank in the debugger, or take it back."""
        self.loop.off(self._desk.descriptor())
        self._desk.serve()
        self.loop.on(self._desk.descriptor(), self._serve_terminal)

    def _pause_view(self) -> None:
        self.pause()
        self._view.pause()

    def _resume_view(self) -> None:
        self._view.resume()
        self.resume()

    def _read_zygote(self) -> None:
        if not self._host.zygote_output.read():
            self.loop.off(self._host.zygote_output.descriptor)

    def _read_signals(self) -> None:
        for number in self._host.inbox.read():
            self._interrupt(number)

    def _interrupt(self, number: signal.Signals) -> None:
        is_second = self._outcome.kind == "signal"
        if not is_second:
            self._outcome.kind, self._outcome.signal = "signal", number
            self._before_ending(f"{number.name} to the launcher")
        self.on_purpose(f"was ended by {number.name}", 128 + number)
        first = signal.SIGTERM if number is signal.SIGPIPE else number
        self.end_ranks([signal.SIGKILL] if is_second else after_signal(first))

    def on_deadline(self) -> None:
        """Say what each rank is doing, and end the ranks."""
        self._outcome.kind = "timeout"
        seen = self._before_ending("the time is up")
        self._view.say(f"phalanx run: the job was not done after {self._job.timeout_s:.3g} s")
        self.on_purpose(f"was not done after {self._job.timeout_s:.3g} s", TIMED_OUT_EXIT_CODE)
        is_python = self._job.program.kind != "executable"
        for rank in self.ranks:
            self._view.say(f"  rank {rank.number} {describe_activity(rank, is_python=is_python)}")
            for line in describe_children(rank, seen):
                self._view.say(f"    {line}")
        self.end_ranks(WHEN_TIME_IS_UP)

    def _before_ending(self, why: str) -> Observation:
        """Record what each rank is doing while the ranks still run."""
        self.watch.note_activity(self.ranks)
        seen = self.watch.describe(self.ranks, self._host.record.view, why)
        self._host.kept.seen = seen
        self._outcome.seen = seen if seen.groups else None
        return seen

    def on_started(self) -> None:
        """Write the ranks into the job's record, for other programs."""
        self._host.record.write([rank.pid for rank in self.ranks])

    def on_end(self, rank: JobRank) -> bool:
        """Decide whether a rank has failed."""
        if self._zygote_ranks.is_lost:
            self._lose_zygote()
            return False
        self._read_failure(rank)  # its note may have arrived at the same moment
        if rank.status != 0:
            self.fail(rank)
        return rank.status == 0

    def before_shutdown(self, rank: JobRank) -> None:
        """Record what each rank was doing when a rank failed."""
        self._outcome.kind = "failed"
        self._before_ending(f"rank {rank.number} failed")

    def _read_failure(self, rank: JobRank) -> None:
        may_continue = self._tracebacks.read(rank)
        note = self._tracebacks.note_of(rank)
        if note is not None and rank.note is None:
            rank.note = note
            self.fail(rank, str(note), is_consequence=note.is_consequence, disagreement=note.disagreement)
            self._tracebacks.settle(rank)
        self._tracebacks.pass_on(rank)
        pipe = self._pipes.failures[rank.index]
        if not may_continue and self.loop.waits_for(pipe):
            self.loop.off(pipe)

    def _lose_zygote(self) -> None:
        """Handle the end of the zygote: its ranks died with it, and this process has adopted their children."""
        if self._outcome.kind != "lost":
            self._outcome.kind = "lost"
            self.on_purpose("lost its ranks, because the process that they are forked from was killed", 137)
            self._host.reap_ranks()
