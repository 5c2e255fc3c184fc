"""One attempt of a job: it forks the ranks and handles every event until they have ended."""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from phalanx.engine import GroupSegment
from phalanx.errors import InternalError
from phalanx.jobs.answers import answer_question
from phalanx.jobs.holdups import Holdups, describe_holdup
from phalanx.jobs.host import Host
from phalanx.jobs.job import Job
from phalanx.jobs.job_result import TIMED_OUT_EXIT_CODE, JobResult
from phalanx.jobs.loop import OutputLoop
from phalanx.jobs.rank import JobRank
from phalanx.jobs.start_request import make_start_request
from phalanx.jobs.streams import Pipes, open_pipes, open_stdin
from phalanx.jobs.summary import describe_activity, describe_children, describe_failure
from phalanx.jobs.tracebacks import Tracebacks
from phalanx.jobs.watch import JobWatch
from phalanx.launch.disagreement import Disagreement
from phalanx.launch.hosts.access import keep_access
from phalanx.launch.hosts.addresses import parse_endpoint
from phalanx.launch.hosts.blame import Verdict
from phalanx.launch.rank import first_culprit
from phalanx.launch.rank_process import StartRequest
from phalanx.launch.rendezvous import open_rendezvous
from phalanx.launch.shutdown import WHEN_TIME_IS_UP, after_signal
from phalanx.launch.supervisor import Supervisor
from phalanx.launch.terminal import TerminalDesk
from phalanx.launch.zygote_ranks import ZygoteRanks

if TYPE_CHECKING:
    from phalanx.diagnosis.observation import Observation

_BETWEEN_LOOKS_S = 0.25
_FIRST_WORDS_S = 2.0
_VERDICT_S = 5.0  # longer than it takes to notice that a host is silent
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
        self._others = host.others
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
            if self._others is not None:
                self.loop.on(self._others.fileno(), self._hear_others)
            if not self._await_zygote():
                return self._outcome
            self.loop.on(self._desk.descriptor(), self._serve_terminal)
            cleanup.enter_context(self._answering_others())
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
        self._await_others()
        for rank in self.ranks:
            self._read_failure(rank)
        for stream in pipes.streams:
            stream.drain(self._view, self._host.logs)
        self._tracebacks.finish(is_elsewhere=self._outcome.is_elsewhere)
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
        self._accuse_here(f"was ended by {number.name}", 128 + number)
        first = signal.SIGTERM if number is signal.SIGPIPE else number
        self.end_ranks([signal.SIGKILL] if is_second else after_signal(first))

    def on_deadline(self) -> None:
        """Say what each rank is doing, and end the ranks."""
        self._outcome.kind = "timeout"
        seen = self._before_ending("the time is up")
        self._view.say(f"phalanx run: the job was not done after {self._job.timeout_s:.3g} s")
        self._accuse_here(f"was not done after {self._job.timeout_s:.3g} s", TIMED_OUT_EXIT_CODE)
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
            self._accuse_here("lost its ranks, because the process that they are forked from was killed", 137)
            self._host.reap_ranks()

    # The other hosts.

    def fail(
        self,
        rank: JobRank,
        why: str = "",
        *,
        is_consequence: bool = False,
        disagreement: Disagreement | None = None,
    ) -> None:
        """Note a rank's failure, free the others, and tell the other hosts."""
        super().fail(rank, why, is_consequence=is_consequence, disagreement=disagreement)
        culprit = first_culprit(self.ranks)
        if self._others is None or self._others.start is None or culprit is None or self._others.verdict is not None:
            return
        hosts = self._others.start.hosts
        where = (
            f"on {self._others.title}"
            if culprit.note is not None
            else f"on {self._others.title[:-1]}, pid {culprit.pid})"
        )
        text = describe_failure(self.ranks, hosts.num_ranks, f" {where}")
        self._others.accuse(
            Verdict(text, hosts.number, culprit.exit_code or 1, culprit.number, is_consequence=not culprit.is_culprit)
        )

    @contextlib.contextmanager
    def _answering_others(self) -> Iterator[None]:
        """Answer questions of other hosts, and let `phalanx diagnose` ask them."""
        if self._others is None or self._others.start is None:
            yield
            return
        start = self._others.start
        self._others.answer = lambda what: answer_question(what, self.ranks, self.watch, self._host.record.view)
        with keep_access(parse_endpoint(start.place), start.token, start.hosts.number):
            yield
        self._others.answer = None

    def _accuse_here(self, what: str, exit_code: int) -> None:
        """Tell the other hosts that this one ends the job."""
        if self._others is not None and self._others.start is not None:
            number = self._others.start.hosts.number
            self._others.accuse(Verdict(f"{self._others.title} {what}", number, exit_code, is_final=True))

    def _hear_others(self) -> None:
        assert self._others is not None
        is_new = self._others.verdict is None
        self._others.read()
        if self._others.is_lost:
            self.loop.off(self._others.fileno())
        verdict = self._others.verdict
        if is_new and verdict is not None and self._others.start is not None:
            self._outcome.verdict = verdict
            if verdict.host != self._others.start.hosts.number:
                self._end_because_of(verdict)

    def _end_because_of(self, verdict: Verdict) -> None:
        """Free the ranks here, because of a failure on another host."""
        if self._outcome.kind == "done":
            self._outcome.kind = "failed"
        if self.shutdown.has_begun or self._starter is None or self.is_over:
            return
        self._before_ending(verdict.text)
        self.watch.fail_elsewhere(self.ranks, verdict.text)
        self.free_ranks()

    def _await_others(self) -> None:
        """Wait until it is known how the job has ended on all hosts."""
        if self._others is None:
            return
        if self._outcome.kind == "done":
            self._others.tell_ended()
        words_at = time.monotonic() + _FIRST_WORDS_S
        patience = float("inf") if self._outcome.kind == "done" else time.monotonic() + _VERDICT_S
        while not self._others.is_settled and not self._is_interrupted() and time.monotonic() < patience:
            if time.monotonic() > words_at:
                words_at = float("inf")
                self._view.say("phalanx run: the ranks of this host are done; waiting for those of the other hosts")
            self._turn()

    def _is_interrupted(self) -> bool:
        return self._outcome.kind in ("signal", "timeout")
