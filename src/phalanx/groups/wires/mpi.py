"""A wire that uses MPI through mpi4py, for ranks that mpiexec or srun has started, if PHALANX_WIRE is mpi.

It must be possible to call MPI from any thread. A message is waited for by asking again and again, because MPI can't
leave a wait.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
import zlib
from collections.abc import Sequence
from typing import Any

from phalanx.errors import UsageError
from phalanx.groups.wires.wire import WireMessage
from phalanx.launch.board import Board

_SPIN_S = 0.0002  # how long to ask without a pause: about a round trip
_SHORTEST_PAUSE_S, _LONGEST_PAUSE_S = 0.00002, 0.001
_IDLE_S, _IDLE_PAUSE_S = 1.0, 0.01  # receives for frames of messages always stand


class MpiWire:
    """Messages of one rank. See phalanx.groups.wires.wire.Wire.

    Args:
        board: What the ranks of the group share; their numbers in MPI's world are exchanged there.
        rank: The number of this rank.
        size: The number of ranks.
        timeout_s: How long to wait for the other ranks.

    Raises:
        UsageError: There is no mpi4py, or this MPI can't be called from any thread.
    """

    def __init__(self, board: Board, rank: int, size: int, timeout_s: float) -> None:
        self._mpi = _load()
        world = self._mpi.COMM_WORLD
        board.set(f"mpi/{rank}", str(world.Get_rank()))
        numbers = [int(text) for text in board.get_many([f"mpi/{number}" for number in range(size)], timeout_s)]
        # Only members take part; the tag keeps groups apart that are made at the same time.
        tag = zlib.crc32(repr(numbers).encode()) % 32768
        self._ranks = world.Create_group(world.Get_group().Incl(numbers), tag)
        self._ranks.Set_errhandler(self._mpi.ERRORS_RETURN)
        self._numbers = itertools.count(1)
        self._under_way: dict[int, Any] = {}
        self._lock = threading.Lock()  # guards _under_way
        self._is_cut = False

    def start(self, messages: Sequence[WireMessage]) -> list[int]:
        """Start messages and return their handles.

        Raises:
            ConnectionError: MPI has lost the connection, or the wire was cut.
        """
        handles = []
        for is_send, peer, tag, address, size in messages:
            if self._is_cut:
                raise ConnectionError("the wire was cut")
            memory = [self._mpi.buffer.fromaddress(address, size), self._mpi.BYTE]
            try:
                start = self._ranks.Isend if is_send else self._ranks.Irecv
                request = start(memory, peer, tag)
            except self._mpi.Exception as error:
                raise ConnectionError(str(error)) from None
            handle = next(self._numbers)
            with self._lock:
                self._under_way[handle] = request
            handles.append(handle)
        return handles

    def wait(self, handles: Sequence[int], limit_s: float) -> None:
        """Wait for messages in turn.

        Raises:
            ConnectionError: MPI has lost the connection, the wire was cut, or the time is up.
        """
        for handle in handles:
            start, pause_s = time.monotonic(), _SHORTEST_PAUSE_S
            while not self._is_done(handle):
                now = time.monotonic()
                if self._is_cut:
                    raise ConnectionError("the wire was cut")
                if now - start > limit_s:
                    raise ConnectionError(f"timed out after {limit_s:.3g} s")
                if now - start > _SPIN_S:
                    time.sleep(pause_s)
                    pause_s = min(2 * pause_s, _IDLE_PAUSE_S if now - start > _IDLE_S else _LONGEST_PAUSE_S)
        with self._lock:
            for handle in handles:
                self._under_way.pop(handle, None)

    def has_come(self, handle: int) -> bool:
        """Tell whether a received message was complete when the wire broke."""
        try:
            return handle in self._under_way and self._is_done(handle)
        except ConnectionError:
            return False

    def cut(self) -> None:
        """End the waits of this rank. Receives are cancelled, so that their memory is free."""
        self._is_cut = True
        with self._lock:
            requests = list(self._under_way.values())
            self._under_way.clear()
        for request in requests:
            with contextlib.suppress(self._mpi.Exception):
                request.Cancel()

    def close(self) -> None:
        """Leave. MPI goes on with what was sent; its communicator stays, because all ranks would have to free it."""
        self.cut()

    def _is_done(self, handle: int) -> bool:
        request = self._under_way.get(handle)
        if request is None:
            raise ConnectionError("the wire was cut")
        try:
            return bool(request.Test())
        except self._mpi.Exception as error:
            raise ConnectionError(str(error)) from None


def _load() -> Any:
    try:
        from mpi4py import MPI  # an optional dependency: phalanx[mpi]
    except ImportError as error:
        raise UsageError(
            f"PHALANX_WIRE is mpi, and mpi4py is not here ({error})\n  do       pip install 'phalanx[mpi]', or unset it"
        ) from error
    if MPI.Query_thread() < MPI.THREAD_MULTIPLE:
        raise UsageError(
            "PHALANX_WIRE is mpi, and this MPI can't be called from several threads\n"
            "  do       let nobody initialise MPI with less than THREAD_MULTIPLE, or unset PHALANX_WIRE"
        )
    return MPI
