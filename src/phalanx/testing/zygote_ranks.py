"""Ranks forked from a clean process, not from this one: for a process whose copy would be of no use.

That is one that has initialised CUDA, or runs threads: a notebook, above all. What they shall do must be sent to them.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import secrets
import signal
import socket
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from phalanx.errors import InternalError
from phalanx.launch.nursery import ZygoteClient
from phalanx.launch.processes import make_job, stream_descriptor
from phalanx.launch.sending import pack
from phalanx.testing.crew import Crew, Terminal
from phalanx.testing.forked_ranks import new_meeting, new_world
from phalanx.testing.line import Line
from phalanx.testing.member import FAILED_EXIT_CODE, Member
from phalanx.testing.output import OutputFiles, create_output_files
from phalanx.testing.stacks import answer_with_stacks

_START_S = 60.0
_KINDS = {"channel": socket.SOCK_STREAM, "side": socket.SOCK_SEQPACKET}

# What a rank does with its line until the crew hangs up.
Serve = Callable[[int, Line], None]


class _Births:
    """What the zygote says of the ranks of one crew: who they are and how they ended."""

    def __init__(self, report: socket.socket) -> None:
        self._report = report
        self.pids: dict[int, int] = {}
        self.statuses: dict[int, int] = {}

    def read(self, *, until: Callable[[], bool]) -> None:
        while not until():
            message = self._report.recv(1 << 20)
            if not message:  # the zygote is gone, and its ranks with it
                for rank in self.pids:
                    self.statuses.setdefault(rank, 256 + signal.SIGKILL)
                return
            event = pickle.loads(message)
            if event[0] == "started":
                self.pids = event[1]
            else:
                self.statuses[event[1]] = event[2]

    def close(self) -> None:
        self._report.close()  # the zygote ends what still runs


@dataclass
class ZygoteMember(Member):
    """A rank whose parent is the zygote."""

    births: _Births | None = None

    def reap(self, *, block: bool = True) -> int | None:
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
    """
    address = f"\0phalanx-crew-{secrets.token_hex(16)}"
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    files = [create_output_files(rank) for rank in range(num_ranks)]
    births = _Births(ours)
    listeners = {name: _listen(f"{address}/{name}", kind, num_ranks) for name, kind in _KINDS.items()}
    payload = pack((_be_rank, (address, serve, os.getpid(), files, redirect), {}))
    pipes = [os.pipe() for _ in range(num_ranks)]
    streams = [stream_descriptor(number) for number in range(3)]
    try:
        with new_world(num_ranks) as segment:
            shared = [theirs.fileno(), segment.descriptor, *streams]
            job = make_job(payload, num_ranks, new_meeting(), 1)
            zygote.start(job, [*shared, *(writer for _, writer in pipes)])
            births.read(until=lambda: bool(births.pids))
            lines = _accept(listeners, num_ranks)
    finally:
        theirs.close()
        for descriptor in (*streams, *(end for pipe in pipes for end in pipe)):
            os.close(descriptor)
        for listener in listeners.values():
            listener.close()
    members = [
        ZygoteMember(rank, births.pids[rank], os.pidfd_open(births.pids[rank]), lines[rank], files[rank], births=births)
        for rank in range(num_ranks)
    ]
    return Crew(members, terminal, on_close=births.close)


def _listen(address: str, kind: int, num_ranks: int) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, kind)
    listener.bind(address)
    listener.listen(num_ranks)
    listener.settimeout(_START_S)
    return listener


def _accept(listeners: dict[str, socket.socket], num_ranks: int) -> dict[int, Line]:
    ends: dict[str, dict[int, socket.socket]] = {name: {} for name in listeners}
    deadline = time.monotonic() + _START_S
    for name, listener in listeners.items():
        while len(ends[name]) < num_ranks:
            try:
                connection, _ = listener.accept()
            except TimeoutError:
                raise InternalError(f"{num_ranks - len(ends[name])} ranks did not start in {_START_S:.0f} s") from None
            connection.settimeout(max(0.1, deadline - time.monotonic()))
            (rank,) = struct.unpack("!I", connection.recv(4))
            connection.settimeout(None)
            ends[name][rank] = connection
    return {rank: Line(ends["channel"][rank], ends["side"][rank]) for rank in range(num_ranks)}


def _be_rank(address: str, serve: Serve, owner: int, files: list[OutputFiles], redirect: bool) -> None:
    """What the zygote's rank runs: call back, then serve."""
    from phalanx.launch.context import current_context

    context = current_context()
    assert context is not None
    rank = context.rank
    ends: dict[str, Any] = {}
    for name, kind in _KINDS.items():
        ends[name] = socket.socket(socket.AF_UNIX, kind)
        ends[name].connect(f"{address}/{name}")
        ends[name].sendall(struct.pack("!I", rank))
    own = OutputFiles(*(_reopen(owner, number) for number in (files[rank].out, files[rank].err, files[rank].stacks)))
    if redirect:
        own.redirect()
    answer_with_stacks(own)
    with contextlib.suppress(ConnectionError):
        serve(rank, Line(ends["channel"], ends["side"]))


def _reopen(owner: int, number: int) -> int:
    """Open a memory file of another process of this user."""
    return os.open(f"/proc/{owner}/fd/{number}", os.O_RDWR | os.O_APPEND)
