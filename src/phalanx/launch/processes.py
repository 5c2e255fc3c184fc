"""Ranks as processes: ask the zygote for them, collect their reports, end them when one fails."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pickle
import selectors
import signal
import socket
import sys
import time
from dataclasses import dataclass
from typing import Any

from phalanx.diagnosis.observer import Observer
from phalanx.engine import GroupSegment
from phalanx.errors import RankFailedError, UsageError
from phalanx.launch.outcome import LOST_STATUS, Failure, could_not_start, raise_first, rank_failed, too_slow, unpack
from phalanx.launch.rank_process import Job, Report
from phalanx.launch.rendezvous import open_rendezvous
from phalanx.launch.sending import pack
from phalanx.launch.terminal import foreground_group, give_foreground
from phalanx.launch.zygote_client import ZygoteClient, shared_zygote
from phalanx.scarcity import in_words
from phalanx.settings import copy_environment, torch_threads

Task = tuple[Any, tuple[Any, ...], dict[str, Any]]


@dataclass(frozen=True)
class Limits:
    """How much of time and trouble the caller accepts."""

    timeout_s: float | None
    grace_s: float
    tolerate_losses: bool


def run_processes(
    task: Task, num_ranks: int, segment: GroupSegment, meeting: str, num_threads: int, limits: Limits
) -> list[Any]:
    """Run the task on that many processes.

    Raises:
        UsageError: The function or its arguments can't be pickled.
        Exception: As spawn().
    """
    try:
        payload = pack(task)
    except Exception as error:
        raise UsageError(f"spawn: the function or its arguments can't be sent to the ranks: {error}") from error
    job = make_job(payload, num_ranks, meeting, num_threads)
    with open_rendezvous() as rendezvous, _Watch(num_ranks, segment, limits) as watch:
        watch.start(dataclasses.replace(job, rendezvous=rendezvous))
        return watch.run(limits.timeout_s)


def make_job(payload: bytes, num_ranks: int, meeting: str, num_threads: int) -> Job:
    """Describe ranks that look like this process to the functions they run."""
    return Job(
        num_ranks=num_ranks,
        payload=payload,
        environment=copy_environment(),
        folder=os.getcwd(),
        path=list(sys.path),
        arguments=list(sys.argv),
        meeting=meeting,
        num_threads=torch_threads(num_threads),
    )


class _Watch:
    """The caller's view of running ranks. Leaving it ends them all."""

    def __init__(self, num_ranks: int, segment: GroupSegment, limits: Limits) -> None:
        self._cleanup = contextlib.ExitStack()
        self._num_ranks = num_ranks
        self._segment = segment
        self._limits = limits
        self._lost: dict[int, RankFailedError] = {}
        self._selector = selectors.PollSelector()
        self._zygote: ZygoteClient | None = None
        self._socket: socket.socket | None = None  # from the zygote
        self._pipes: dict[int, int] = {}  # of each rank whose report is not read to its end
        self._parts: dict[int, bytearray] = {rank: bytearray() for rank in range(num_ranks)}
        self._reports: dict[int, Report] = {}
        self._failures: dict[int, Failure] = {}
        self._running = set(range(num_ranks))
        self._pids: dict[int, int] = {}
        self._kill_at: float | None = None
        self._has_terminated = False
        self._have_all_ended = False

    def __enter__(self) -> _Watch:
        return self

    def __exit__(self, *_: object) -> None:
        if foreground_group() in self._pids.values():  # a rank that was debugged has died
            give_foreground(os.getpgrp())
        self._cleanup.close()  # the zygote ends what still runs

    def start(self, job: Job) -> None:
        with contextlib.ExitStack() as theirs:
            try:
                report = self._open_report(theirs)
                streams = [_closing(theirs, stream_descriptor(number)) for number in range(3)]
                writers = [self._open_pipe(rank, theirs) for rank in range(self._num_ranks)]
            except OSError as error:
                raise in_words(error, f"spawn: no descriptors for {self._num_ranks} ranks") from error
            self._zygote = shared_zygote()
            self._zygote.start(job, [report, self._segment.descriptor, *streams, *writers])

    def _open_report(self, theirs: contextlib.ExitStack) -> int:
        self._socket, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._cleanup.enter_context(self._socket)
        self._selector.register(self._socket, selectors.EVENT_READ)
        return theirs.enter_context(other).fileno()

    def _open_pipe(self, rank: int, theirs: contextlib.ExitStack) -> int:
        reader, writer = os.pipe()
        _closing(theirs, writer)
        self._cleanup.callback(self._close_pipe, rank)
        self._pipes[rank] = reader
        os.set_blocking(reader, False)
        self._selector.register(reader, selectors.EVENT_READ, rank)
        return writer

    def _close_pipe(self, rank: int) -> None:
        if rank in self._pipes:
            self._selector.unregister(self._pipes[rank])
            os.close(self._pipes.pop(rank))

    def run(self, timeout_s: float | None) -> list[Any]:
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while self._pipes or not self._have_all_ended:
            for key, _ in self._selector.select(self._patience(deadline)):
                if key.fd not in self._selector.get_map():
                    continue  # read to its end by an event before it
                if isinstance(key.data, int):
                    self._read_report(key.data)
                else:
                    self._read_event()
            now = time.monotonic()
            if deadline is not None and now > deadline and self._running and not self._failures:
                raise too_slow(sorted(self._running), self._num_ranks, timeout_s or 0)
            if self._kill_at is not None and now > self._kill_at:
                self._end_ranks()
        if self._failures:
            raise_first(list(self._failures.values()), self._num_ranks)
        return [self._lost.get(rank) or unpack(self._reports[rank]) for rank in range(self._num_ranks)]

    def _patience(self, deadline: float | None) -> float | None:
        moments = [moment for moment in (deadline, self._kill_at) if moment is not None]
        return max(0.0, min(moments) - time.monotonic()) + 0.001 if moments else None

    def _read_report(self, rank: int) -> bool:
        """Read some of a rank's report; tell whether more is there."""
        try:
            part = os.read(self._pipes[rank], 1 << 20)
        except BlockingIOError:
            return False
        self._parts[rank] += part
        if not part:
            self._finish_report(rank)
        return bool(part)

    def _finish_report(self, rank: int) -> None:
        self._close_pipe(rank)
        if not self._parts[rank]:
            return  # it died; its status comes from the zygote
        with contextlib.suppress(EOFError, pickle.UnpicklingError):
            report: Report = pickle.loads(self._parts[rank])
            self._reports[rank] = report
            if report.exception is not None:
                self._fail(Failure(rank, report, 1), report.description)

    def _read_event(self) -> None:
        assert self._socket is not None
        message = self._socket.recv(1 << 20)
        if not message:
            self._lose_zygote()
            return
        event = pickle.loads(message)
        if event[0] == "started":
            self._pids = event[1]
            for rank, pid in self._pids.items():
                self._segment.launched(rank, pid)
        elif event[0] == "refused":
            raise could_not_start(event[1], self._num_ranks, *event[2:])
        elif event[0] == "all ended":
            self._have_all_ended = True
        else:
            self._end(event[1], event[2])

    def _lose_zygote(self) -> None:
        """The process that ranks were forked from is gone, and its ranks with it; or it has lost touch with them."""
        assert self._socket is not None
        self._selector.unregister(self._socket)
        self._have_all_ended = True
        was_killed = self._zygote is not None and self._zygote.was_killed()
        for rank in list(self._running):
            self._end(rank, 256 + signal.SIGKILL if was_killed else LOST_STATUS)

    def _end(self, rank: int, status: int) -> None:
        self._running.discard(rank)
        self._segment.declare_dead(rank, status)
        if self._drain(rank) or rank in self._failures:
            return
        self._tell_other_groups(rank, status)
        failure = Failure(rank, None, status)
        if self._limits.tolerate_losses:
            self._lost[rank] = rank_failed(failure, self._num_ranks)
        else:
            self._fail(failure, "")

    def _tell_other_groups(self, rank: int, status: int) -> None:
        """Say how a rank died also in groups made later: they have memory of their own, which survivors hold open."""
        if rank in self._pids:
            observer = Observer()
            observer.look([self._pids[other] for other in self._running if other in self._pids])
            observer.declare_dead(self._pids[rank], status)
            observer.close()

    def _drain(self, rank: int) -> bool:
        """Read what a rank that has just ended still has in its pipe, whoever else may hold the other end."""
        while rank in self._pipes:
            if not self._read_report(rank) and rank in self._pipes:
                self._finish_report(rank)
        return rank in self._reports

    def _fail(self, failure: Failure, told: str) -> None:
        self._failures[failure.rank] = failure
        if told:
            self._segment.fail(failure.rank, told)
        if self._kill_at is None:
            self._kill_at = time.monotonic() + self._limits.grace_s

    def _end_ranks(self) -> None:
        """First ask, then insist."""
        number = signal.SIGKILL if self._has_terminated else signal.SIGTERM
        for rank in self._running:
            if rank in self._pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self._pids[rank], number)
        self._kill_at = None if self._has_terminated else time.monotonic() + self._limits.grace_s
        self._has_terminated = True


def _closing(stack: contextlib.ExitStack, descriptor: int) -> int:
    stack.callback(os.close, descriptor)
    return descriptor


def stream_descriptor(number: int) -> int:
    """Return a copy of one of the standard streams; of nothing where it is closed."""
    try:
        return os.dup(number)
    except OSError:  # closed in this process
        return os.open(os.devnull, os.O_RDWR)
