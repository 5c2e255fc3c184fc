"""The process that ranks are forked from: it has imported torch, runs one thread, and does nothing else.

    caller  --(control socket: requests)-->  zygote  --fork-->  ranks
            <-(a socket per request: pids, exits)--

The zygote ends when the control socket is closed. When the socket of a request is closed, the zygote ends the ranks of
that request. It also ends the processes that ranks have started: the rest of a rank's process group soon after the
rank, and daemons with their own sessions after the last rank of the request. (While ranks of other requests run, it
can't tell which rank has started a daemon, so it waits for the last rank of all requests.)
"""

from __future__ import annotations

import contextlib
import errno
import gc
import importlib
import os
import pickle
import selectors
import signal
import socket
import struct
import traceback
import weakref
from collections.abc import Callable
from typing import Any

from phalanx.launch.connection import Connection, connected_pair, receive_with_descriptors
from phalanx.launch.orphans import OrphanReaper, adopt_orphans, end_children, own_children
from phalanx.launch.outcome import describe_process_limit
from phalanx.launch.rank_devices import PRELOADED
from phalanx.launch.rank_process import StartRequest, run_rank
from phalanx.settings import wants_set_up

_LENGTH = struct.Struct("!Q")
_BETWEEN_LOOKS_S = 0.1
_LONGEST_SLEEP_S = 1.0  # while ranks run: if the kernel has no memory, the byte that reports a rank's end is lost
# Modules that most programs need. Ranks have them from the start.
_PRELOADED = ("torch", "phalanx.groups.connect", "phalanx.torch_backend.creation")


def send_request(control: socket.socket, request: StartRequest, descriptors: list[int]) -> None:
    """Ask for ranks, with these descriptors: the request's socket, those that ranks share, then those of each rank.

    Each request has its own socket, so that a request which fails half-way does not disturb the next one.

    Raises:
        OSError: It could not be sent, or the zygote can't receive it.
    """
    ours, theirs = connected_pair()
    with contextlib.closing(ours):
        with contextlib.closing(theirs):
            socket.send_fds(control, [b"r"], [theirs.fileno()])
        ours.send(request, descriptors)
        answer = ours.receive()
    number = errno.EPIPE if answer is None else answer[0]
    if number:
        raise OSError(number, os.strerror(number))


def _receive_request(control: socket.socket) -> tuple[StartRequest, list[int]] | None:
    """Receive the next request; None if that failed, which its sender finds out too."""
    marker, descriptors = receive_with_descriptors(control, 1, 1)
    if not marker:
        raise EOFError
    if not descriptors:  # this process may open no more files
        return None
    try:
        with contextlib.closing(Connection(_socket_of(descriptors[0], socket.SOCK_STREAM))) as connection:
            return _answer_request(connection)
    except OSError:  # the request could not be received
        return None


def _answer_request(connection: Connection) -> tuple[StartRequest, list[int]] | None:
    try:
        received = connection.receive()
    except OSError as error:
        connection.send(error.errno)
        return None
    if received is not None:
        try:
            connection.send(0)
        except OSError:
            for descriptor in received[1]:
                os.close(descriptor)
            raise
    return received


def _socket_of(descriptor: int, kind: int) -> socket.socket:
    """Make a socket from a descriptor; close the descriptor if that fails."""
    try:
        return socket.socket(socket.AF_UNIX, kind, 0, fileno=descriptor)
    except OSError:
        os.close(descriptor)
        raise


class _RequestedRanks:
    """The ranks of one request."""

    def __init__(self, request: StartRequest, report: socket.socket) -> None:
        self.request = request
        self.report = report
        self.ranks: dict[int, int] = {}  # pid to rank

    def start(self, descriptors: list[int], release: Callable[[], None]) -> None:
        """Fork all ranks or none, and tell the caller."""
        try:
            for rank in range(self.request.num_ranks):
                self._fork(rank, descriptors, release)
        except OSError as error:
            refusal = ("refused", len(self.ranks), error.errno, describe_process_limit(error))
            self.kill()
            for pid in self.ranks:
                os.waitpid(pid, 0)
            self.ranks.clear()
            self.tell(refusal)
        else:
            self.tell(("started", {rank: pid for pid, rank in self.ranks.items()}))
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def _fork(self, rank: int, descriptors: list[int], release: Callable[[], None]) -> None:
        shared, own = descriptors[: self.request.num_shared], descriptors[self.request.num_shared :]
        per_rank = len(own) // self.request.num_ranks
        zygote = os.getpid()
        pid = os.fork()
        if pid == 0:
            try:
                mine = own[rank * per_rank : (rank + 1) * per_rank]
                for descriptor in set(own).difference(mine):
                    os.close(descriptor)
                self.report.close()
                release()
                self.request.entry(rank, self.request, [*shared, *mine], zygote)  # it never returns
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(1)
        with contextlib.suppress(OSError):  # the rank does the same, because it may have children before this call
            os.setpgid(pid, pid)
        self.ranks[pid] = rank

    def note_end(self, pid: int, status: int) -> None:
        """Report a rank's end."""
        rank = self.ranks.pop(pid)
        code = os.waitstatus_to_exitcode(status)
        self.tell(("ended", rank, code if code >= 0 else 256 - code))

    def kill(self) -> None:
        """End all ranks at once."""
        for pid in self.ranks:
            _kill_group(pid)

    def tell(self, message: tuple[Any, ...]) -> None:
        """Send the caller a message."""
        try:
            self.report.send(pickle.dumps(message))
        except OSError:  # the caller has gone, or it can't be reached: then closing the socket tells it
            with contextlib.suppress(OSError):
                self.report.shutdown(socket.SHUT_RDWR)


def _kill_group(group: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):  # some may have changed their user
        os.killpg(group, signal.SIGKILL)


class _Zygote:
    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._orphan_reaper = OrphanReaper()
        self._selector = selectors.PollSelector()  # needs no descriptor
        self._selector.register(control, selectors.EVENT_READ)
        self._all_requested: list[_RequestedRanks] = []
        self._own = frozenset(own_children())  # children of imported libraries, not of ranks
        self._wakeup, wakeup_writer = socket.socketpair()
        wakeup_writer.setblocking(False)
        self._wakeup.setblocking(False)
        self._wakeup_writer = wakeup_writer
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wakeup_writer.fileno())
        self._selector.register(self._wakeup, selectors.EVENT_READ)

    def run(self) -> None:
        with contextlib.suppress(EOFError, ConnectionError):
            while True:
                for key, _ in self._selector.select(self._patience()):
                    if key.fileobj is self._control:
                        self._start_ranks()
                    elif key.fileobj is not self._wakeup:
                        self._end_request(key.data)
                self._reap()
                self._orphan_reaper.look()
        for requested in self._all_requested:
            requested.kill()
        end_children(keep=self._own)

    def _patience(self) -> float | None:
        if self._orphan_reaper.is_busy():
            return _BETWEEN_LOOKS_S
        return _LONGEST_SLEEP_S if any(requested.ranks for requested in self._all_requested) else None

    def _start_ranks(self) -> None:
        received = _receive_request(self._control)
        if received is None:
            return
        request, descriptors = received
        try:
            report = _socket_of(descriptors[0], socket.SOCK_SEQPACKET)
        except OSError:  # the caller sees that the socket is closed
            for descriptor in descriptors[1:]:
                os.close(descriptor)
            return
        _preload_devices(request)
        requested = _RequestedRanks(request, report)
        signal.set_wakeup_fd(-1)  # children must not write into it
        requested.start(descriptors[1:], self._release)
        signal.set_wakeup_fd(self._wakeup_writer.fileno())
        self._all_requested.append(requested)
        self._selector.register(requested.report, selectors.EVENT_READ, requested)

    def _release(self) -> None:
        """In a rank: close the descriptors of the zygote."""
        self._selector.close()
        for ours in (
            self._control,
            self._wakeup,
            self._wakeup_writer,
            *(other.report for other in self._all_requested),
        ):
            ours.close()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)

    def _reap(self) -> None:
        with contextlib.suppress(BlockingIOError):
            self._wakeup.recv(4096)
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            for requested in self._all_requested:
                if pid in requested.ranks:
                    self._note_end(requested, pid, status)

    def _note_end(self, requested: _RequestedRanks, pid: int, status: int) -> None:
        self._orphan_reaper.expect(pid)
        requested.note_end(pid, status)
        if not requested.ranks:
            self._end_orphans()
            requested.tell(("all ended",))

    def _end_request(self, requested: _RequestedRanks) -> None:
        """End the ranks of a request whose socket was closed: the caller no longer needs them, or is dead."""
        self._selector.unregister(requested.report)
        requested.report.close()
        requested.kill()
        for pid in list(requested.ranks):
            os.waitpid(pid, 0)
        self._all_requested.remove(requested)
        self._end_orphans()

    def _end_orphans(self) -> None:
        """End all children that are no ranks, unless they may belong to ranks that still run."""
        if not any(requested.ranks for requested in self._all_requested):
            end_children(keep=self._own)


def _preload_devices(request: StartRequest) -> None:
    """Import what ranks with virtual GPUs need. If that fails, the ranks fail in the same way, and report it."""
    with contextlib.suppress(Exception):
        if request.entry is run_rank and wants_set_up(request.environment):
            for name in PRELOADED:
                importlib.import_module(name)


def _skip_torchs_housekeeping() -> None:
    """Keep torch from destroying its operators at the end of every rank, which takes longer than starting the rank."""
    registry: dict[Any, Any] = weakref.finalize._registry  # type: ignore[attr-defined]
    for finalizer, facts in registry.items():
        if getattr(facts.func, "__module__", "") == "torch.library":
            finalizer.atexit = False


def main(
    descriptor: int,
    prepare: Callable[[], None] = lambda: None,
    *,
    is_forkable: Callable[[], bool] = lambda: True,
) -> None:
    """Import what ranks need, report that, and fork ranks on request until the caller has gone.

    Args:
        descriptor: The control socket.
        prepare: What else to do before ranks are forked.
        is_forkable: Tells whether forks of this process will work as ranks. Threads are checked in any case.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    control = socket.socket(fileno=descriptor)
    adopt_orphans()
    gc.disable()  # imports make many objects that stay: collecting garbage meanwhile takes a fifth of the time
    for name in _PRELOADED:
        importlib.import_module(name)
    prepare()
    _skip_torchs_housekeeping()
    gc.freeze()  # so that the collector in a rank does not visit these objects, which would copy their pages
    gc.enable()
    num_threads = len(os.listdir("/proc/self/task")) if is_forkable() else 0
    control.sendall(_LENGTH.pack(num_threads))
    if num_threads == 1:
        _Zygote(control).run()
    os._exit(0)
