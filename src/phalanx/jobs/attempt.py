"""One set of ranks, from fork to end: one loop over everything that can happen."""

from __future__ import annotations

import contextlib
import functools
import os
import pickle
import signal
import socket
import time

from phalanx.errors import InternalError
from phalanx.jobs.holdups import Holdups, describe_holdup
from phalanx.jobs.host import Host
from phalanx.jobs.job import Job
from phalanx.jobs.job_result import JobResult
from phalanx.jobs.loop import Loop
from phalanx.jobs.notes import decode_note
from phalanx.jobs.rank import Rank
from phalanx.jobs.ranks_job import make_ranks_job
from phalanx.jobs.shutdown import AFTER_FAILURE, WHEN_TIME_IS_UP, Shutdown, after_signal
from phalanx.jobs.streams import Pipes, open_pipes, open_stdin
from phalanx.jobs.summary import describe_activity
from phalanx.jobs.watch import Watch
from phalanx.launch import rank_process
from phalanx.launch.outcome import could_not_start
from phalanx.launch.rendezvous import open_rendezvous
from phalanx.launch.terminal import TerminalDesk

_BETWEEN_LOOKS_S = 0.25
_BETWEEN_UNSEEN_LOOKS_S = 1.0  # often enough to know a rank's groups before it dies
_NOTE_BYTES = 1 << 16


class Attempt:
    """Starts ranks and looks after them until nothing of them is left.

    Args:
        job: What was asked for.
        host: What all attempts of a job have in common.
        deadline: When the job's time is up, or None.
    """

    def __init__(self, job: Job, host: Host, deadline: float | None) -> None:
        self._job = job
        self._host = host
        self._view = host.view
        self._deadline = deadline
        self._ranks = [Rank(number) for number in range(job.num_ranks)]
        self._outcome = JobResult("done", self._ranks)
        self._ending = Shutdown(job.grace_s)
        self._watch = Watch()
        self._loop = Loop(host.view, host.logs)
        self._notes: list[int] = []  # where each rank's note comes from
        self._has_started = False  # whether ranks were asked for
        self._have_all_ended = False
        self._look_at = self._watch_at = 0.0
        self._holdups = Holdups(job.warn_after_s)
        self._desk = TerminalDesk(self._view.pause, self._view.resume)
        self._lent_at = 0.0

    def run(self, num_restarts: int) -> JobResult:
        """Start the ranks and return when they, and all they have started, are gone.

        Args:
            num_restarts: How often ranks of this job were started before.

        Raises:
            InternalError: The process that ranks are forked from did not start.
            RankFailedError: A rank's process could not be started.
            OSError: There are no more descriptors for them.
            SharedMemoryError: There is not enough memory for the ranks' world.
        """
        with contextlib.ExitStack() as cleanup:
            cleanup.callback(self._loop.close)
            cleanup.callback(self._close_ranks)
            cleanup.callback(self._desk.close)
            world = self._watch.open_world(len(self._ranks))
            rendezvous = cleanup.enter_context(open_rendezvous())
            pipes = cleanup.enter_context(open_pipes(self._ranks))
            self._loop.on(self._host.inbox.fileno(), self._read_signals)
            self._loop.on(self._host.zygote_pidfd, self._lose_zygote)
            self._loop.on(self._host.zygote_output.descriptor, self._read_zygote)
            if not self._await_zygote():
                return self._outcome
            self._loop.on(self._desk.descriptor(), self._serve_terminal)
            ranks_job = make_ranks_job(self._job, self._host, rendezvous, num_restarts, terminal=self._desk.name)
            report = cleanup.enter_context(self._start(ranks_job, world, pipes))
            self._loop.on(report.fileno(), functools.partial(self._read_report, report))
            self._look_after(pipes)
        return self._outcome

    def _look_after(self, pipes: Pipes) -> None:
        self._notes = pipes.notes
        for rank in self._ranks:
            self._loop.on(self._notes[rank.number], functools.partial(self._read_note, rank))
        self._loop.add_streams(pipes.streams)
        while not self._have_all_ended:
            self._turn()
        for stream in pipes.streams:
            stream.drain(self._view, self._host.logs)
        self._view.update(self._ranks)

    def _await_zygote(self) -> bool:
        """Wait until ranks can be forked; False when it was decided before that they shall not."""
        zygote = self._host.zygote
        if not zygote.is_ready:
            self._loop.on(zygote.fileno(), self._greet_zygote)
        while not zygote.is_ready and not self._ending.has_begun:
            self._turn()
        return zygote.is_ready and not self._ending.has_begun

    def _greet_zygote(self) -> None:
        self._loop.off(self._host.zygote.fileno())
        try:
            self._host.zygote.await_ready()
        except InternalError:
            self._host.zygote_output.drain()
            self._host.check_refusal()
            raise

    def _start(self, ranks_job: rank_process.Job, world: int, pipes: Pipes) -> socket.socket:
        with contextlib.ExitStack() as starting:
            stdin = open_stdin()
            starting.callback(os.close, stdin)
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            try:
                with theirs:
                    self._host.zygote.start(ranks_job, [theirs.fileno(), world, stdin, *pipes.theirs])
            except BaseException:
                ours.close()
                raise
        self._has_started = True
        pipes.close_theirs()
        return ours

    def _turn(self) -> None:
        """Wait for something to happen, and see to it."""
        self._loop.turn(self._patience_s())
        if not self._ending.has_begun and any(writer.is_broken for writer in self._view.writers()[:1]):
            self._interrupt(signal.SIGPIPE)  # as any program whose output nobody wants
        now = time.monotonic()
        if now >= self._look_at:
            self._look_at = now + _BETWEEN_LOOKS_S
            self._look()
        is_up = self._deadline is not None and now >= self._deadline and not self._desk.is_lent
        if is_up and not self._ending.has_begun:
            self._time_out()
        self._ending.look(self._ranks)

    def _patience_s(self) -> float:
        deadline = None if self._desk.is_lent else self._deadline
        moments = [self._look_at, *(m for m in (deadline, self._ending.due_at) if m is not None)]
        if self._ending.has_begun:
            moments = [self._look_at, self._ending.due_at or self._look_at]
        return max(0.0, min(moments) - time.monotonic())

    def _look(self) -> None:
        self._loop.show_progress()
        now = time.monotonic()
        if not self._ending.has_begun and (self._view.is_watching or now >= self._watch_at):
            self._watch_at = now + _BETWEEN_UNSEEN_LOOKS_S
            self._watch.look(self._ranks)
            self._warn_of_holdups()
        if self._view.is_watching:
            for rank in self._ranks:
                rank.measure_memory()
        self._view.update(self._ranks)

    def _warn_of_holdups(self) -> None:
        if self._desk.is_lent or not self._holdups.is_due(self._watch.waits, time.monotonic_ns()):
            return
        seen = self._watch.describe(self._ranks, self._host.record.facts, "")
        for line in describe_holdup(seen) if seen is not None else ():
            self._view.say(f"phalanx run: {line}")

    def _serve_terminal(self) -> None:
        """Lend the terminal to a rank that is debugged, or take it back. The job's time stands still meanwhile."""
        was_lent = self._desk.is_lent
        self._loop.off(self._desk.descriptor())
        self._desk.serve()
        self._loop.on(self._desk.descriptor(), self._serve_terminal)
        if self._desk.is_lent:
            self._lent_at = time.monotonic()
        elif was_lent and self._deadline is not None:
            self._deadline += time.monotonic() - self._lent_at

    def _read_zygote(self) -> None:
        if not self._host.zygote_output.read():
            self._loop.off(self._host.zygote_output.descriptor)

    def _read_signals(self) -> None:
        for number in self._host.inbox.read():
            self._interrupt(number)

    def _interrupt(self, number: signal.Signals) -> None:
        is_second = self._outcome.kind == "signal"
        if not is_second:
            self._outcome.kind, self._outcome.signal = "signal", number
            self._before_ending(f"{number.name} to the launcher")
        first = signal.SIGTERM if number is signal.SIGPIPE else number
        self._ending.begin([signal.SIGKILL] if is_second else after_signal(first), self._ranks)

    def _time_out(self) -> None:
        self._outcome.kind = "timeout"
        self._before_ending("the time is up")
        self._view.say(f"phalanx run: the job was not done after {self._job.timeout_s:.3g} s")
        for rank in self._ranks:
            self._view.say(f"  rank {rank.number} {describe_activity(rank)}")
        self._ending.begin(WHEN_TIME_IS_UP, self._ranks)

    def _before_ending(self, why: str) -> None:
        """Note where everybody is, while those that run are still there."""
        self._watch.look(self._ranks)
        self._outcome.seen = self._watch.describe(self._ranks, self._host.record.facts, why)

    def _read_report(self, report: socket.socket) -> None:
        message = report.recv(1 << 20)
        if not message:
            self._loop.off(report.fileno())
            return
        event = pickle.loads(message)
        if event[0] == "started":
            self._begin(event[1])
        elif event[0] == "ended":
            self._end(self._ranks[event[1]], event[2])
        elif event[0] == "refused":
            raise could_not_start(event[1], len(self._ranks), *event[2:])
        else:
            self._have_all_ended = True

    def _begin(self, pids: dict[int, int]) -> None:
        for rank in self._ranks:
            rank.pid = pids[rank.number]
            with contextlib.suppress(ProcessLookupError):  # it has ended already
                rank.pidfd = os.pidfd_open(rank.pid)
        self._ending.catch_up(self._ranks)
        self._watch.note_ranks(self._ranks)
        self._host.record.write([rank.pid for rank in self._ranks])

    def _end(self, rank: Rank, status: int) -> None:
        if self._loop.waits_for(self._notes[rank.number]):
            self._read_note(rank)  # it may have come in the same moment
        rank.status = status
        if status != 0:
            self._fail(rank, "")
        self._watch.tell_death(rank)

    def _read_note(self, rank: Rank) -> None:
        try:
            data = os.read(self._notes[rank.number], _NOTE_BYTES)
        except BlockingIOError:
            return
        self._loop.off(self._notes[rank.number])
        note = decode_note(data)
        if note is not None:
            rank.note = note
            self._fail(rank, str(note))

    def _fail(self, rank: Rank, why: str) -> None:
        rank.fail()
        if rank.failed_at is None:
            return
        if not self._ending.has_begun:
            self._outcome.kind = "failed"
            self._before_ending(f"rank {rank.number} failed")
        if why:
            self._watch.tell_failure(rank, why)
        if not self._ending.has_begun:
            self._ending.begin(AFTER_FAILURE, self._ranks)

    def _lose_zygote(self) -> None:
        """The ranks die with the process they were forked from; what they have started comes to us."""
        self._loop.off(self._host.zygote_pidfd)
        if not self._has_started:
            return  # it never was ready: await_ready() says so
        self._host.reap_ranks()
        self._outcome.kind = "lost"
        for rank in self._ranks:
            if rank.status is None:
                rank.status = 256 + signal.SIGKILL
        self._have_all_ended = True

    def _close_ranks(self) -> None:
        for rank in self._ranks:
            if rank.pidfd >= 0:
                os.close(rank.pidfd)
                rank.pidfd = -1
        self._watch.close()
