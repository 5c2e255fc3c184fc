"""Ranks forked from a clean process, not from this one: for a process whose copy would be of no use.

That is one that has initialised CUDA, or runs threads: a notebook, above all. What they shall do must be sent to them.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import socket
from collections.abc import Callable
from dataclasses import dataclass

from phalanx.errors import InternalError
from phalanx.launch.context import current_context
from phalanx.launch.outcome import could_not_start
from phalanx.launch.processes import make_job, stream_descriptor
from phalanx.launch.sending import pack
from phalanx.launch.zygote_client import ZygoteClient
from phalanx.testing.crew import Crew
from phalanx.testing.forked_ranks import new_world
from phalanx.testing.line import Line
from phalanx.testing.meetings import name_meeting
from phalanx.testing.member import FAILED_EXIT_CODE, Member
from phalanx.testing.rank_listener import Call, RankListener
from phalanx.testing.terminal import Terminal

# What a rank does with its line until the crew hangs up.
Serve = Callable[[int, Line], None]


class _Births:
    """What the zygote says of the ranks of one crew: who they are and how they ended."""

    def __init__(self, report: socket.socket, num_ranks: int) -> None:
        self._report = report
        self._num_ranks = num_ranks
        self.pids: dict[int, int] = {}
        self.statuses: dict[int, int] = {}

    def read(self, *, until: Callable[[], bool]) -> None:
        while not until():
            message = self._report.recv(1 << 20)
            if not message and not self.pids:
                raise InternalError("the process that ranks are forked from ended before it had forked them")
            if not message:  # the zygote is gone, and its ranks with it
                for rank in self.pids:
                    self.statuses.setdefault(rank, 256 + signal.SIGKILL)
                return
            event = pickle.loads(message)
            if event[0] == "started":
                self.pids = event[1]
            elif event[0] == "refused":
                raise could_not_start(event[1], self._num_ranks, *event[2:])
            elif event[0] == "ended":
                self.statuses[event[1]] = event[2]

    def close(self) -> None:
        self._report.close()  # the zygote ends what still runs


@dataclass
class ZygoteMember(Member):
    """A rank whose parent is the zygote."""

    births: _Births | None = None

    def reap(self) -> int | None:
        """Return how it ended, as the zygote saw it."""
        births = self.births
        if self.status is None and births is not None:
            births.read(until=lambda: self.rank in births.statuses)
            self.status = births.statuses.get(self.rank, FAILED_EXIT_CODE)
        return self.status


def start_crew(num_ranks: int, serve: Serve, zygote: ZygoteClient, *, redirect: bool, terminal: Terminal) -> Crew:
    """Start ranks that serve this process.

    Args:
        num_ranks: How many.
        serve: What they do; must be picklable.
        zygote: The process they are forked from.
        redirect: Whether they print into files of their own.
        terminal: What ranks that are debugged share.

    Raises:
        InternalError: They did not start.
        RankFailedError: A process could not be started.
        OSError: There are no more descriptors for them.
    """
    with contextlib.ExitStack() as failing:
        with contextlib.ExitStack() as starting:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            failing.callback(ours.close)
            descriptors = [starting.enter_context(theirs).fileno()]
            segment = starting.enter_context(new_world(num_ranks))
            descriptors += [segment.descriptor, *(_closing(starting, stream_descriptor(number)) for number in range(3))]
            descriptors += [_open_pipe(starting) for _ in range(num_ranks)]
            listener = starting.enter_context(RankListener(num_ranks, redirect=redirect))
            payload = pack((_be_rank, (listener.calls, serve), {}))
            zygote.start(make_job(payload, num_ranks, name_meeting(), 1), descriptors)
            births = _Births(ours, num_ranks)
            births.read(until=lambda: bool(births.pids))
            lines = listener.accept()
        members = [
            ZygoteMember(rank, pid, os.pidfd_open(pid), lines[rank], listener.files[rank], births=births)
            for rank, pid in sorted(births.pids.items())
        ]
        failing.pop_all()
    return Crew(members, terminal, on_close=births.close)


def _closing(stack: contextlib.ExitStack, descriptor: int) -> int:
    stack.callback(os.close, descriptor)
    return descriptor


def _open_pipe(stack: contextlib.ExitStack) -> int:
    """Return the end of a pipe that ranks may write a report to; nobody reads it."""
    reader, writer = os.pipe()
    _closing(stack, reader)
    return _closing(stack, writer)


def _be_rank(calls: list[Call], serve: Serve) -> None:
    """What the zygote's rank runs: call back, then serve."""
    context = current_context()
    assert context is not None
    with contextlib.suppress(ConnectionError):
        serve(context.rank, calls[context.rank].answer())
