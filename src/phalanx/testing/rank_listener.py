"""Where ranks that this process has not forked call in, so that there is a line to each."""

from __future__ import annotations

import os
import secrets
import socket
import struct
from dataclasses import dataclass
from typing import Any

from phalanx.errors import InternalError
from phalanx.launch.meeting import is_same_user
from phalanx.testing.line import Line
from phalanx.testing.output import OutputFiles, create_output_files
from phalanx.testing.stacks import answer_with_stacks

_START_S = 120.0
_KINDS = {"channel": socket.SOCK_STREAM, "side": socket.SOCK_SEQPACKET}


@dataclass(frozen=True)
class Call:
    """What a rank must know to call in. Travels to it as it is.

    Attributes:
        address: Where.
        rank: As whom.
        owner: The process that has the files for its output.
        files: Their descriptors there.
        redirect: Whether it shall print into them.
    """

    address: str
    rank: int
    owner: int
    files: OutputFiles
    redirect: bool

    def answer(self) -> Line:
        """On the rank: call in."""
        ends: dict[str, Any] = {}
        for name, kind in _KINDS.items():
            ends[name] = socket.socket(socket.AF_UNIX, kind)
            ends[name].connect(f"{self.address}/{name}")
            if not is_same_user(ends[name]):
                raise InternalError("another user holds the place where ranks are expected")
            ends[name].sendall(struct.pack("!I", self.rank))
        own = OutputFiles(*(self._reopen(number) for number in (self.files.out, self.files.err, self.files.stacks)))
        if self.redirect:
            own.redirect()
        answer_with_stacks(own)
        return Line(ends["channel"], ends["side"])

    def _reopen(self, number: int) -> int:
        """Open a memory file of another process of this user."""
        return os.open(f"/proc/{self.owner}/fd/{number}", os.O_RDWR | os.O_APPEND)


class RankListener:
    """The place, while ranks are expected."""

    def __init__(self, num_ranks: int, *, redirect: bool) -> None:
        self._address = f"\0phalanx-crew-{secrets.token_hex(16)}"
        self._num_ranks = num_ranks
        self.files = [create_output_files(rank) for rank in range(num_ranks)]
        self.calls = [Call(self._address, rank, os.getpid(), self.files[rank], redirect) for rank in range(num_ranks)]
        self._listeners = {name: self._listen(name, kind) for name, kind in _KINDS.items()}

    def __enter__(self) -> RankListener:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        for listener in self._listeners.values():
            listener.close()
        if kind is not None:
            for files in self.files:
                files.close()

    def accept(self) -> dict[int, Line]:
        """Wait for all ranks.

        Raises:
            InternalError: They did not come in time.
        """
        ends: dict[str, dict[int, socket.socket]] = {name: {} for name in self._listeners}
        for name, listener in self._listeners.items():
            while len(ends[name]) < self._num_ranks:
                try:
                    connection, _ = listener.accept()
                except TimeoutError:
                    missing = sorted(set(range(self._num_ranks)) - set(ends[name]))
                    raise InternalError(f"ranks {missing} did not start in {_START_S:.0f} s") from None
                # What comes on these lines is unpickled: everybody can see the name, and only this user may come in.
                if not is_same_user(connection):
                    connection.close()
                    continue
                (rank,) = struct.unpack("!I", connection.recv(4))
                ends[name][rank] = connection
        return {rank: Line(ends["channel"][rank], ends["side"][rank]) for rank in range(self._num_ranks)}

    def _listen(self, name: str, kind: int) -> socket.socket:
        listener = socket.socket(socket.AF_UNIX, kind)
        listener.bind(f"{self._address}/{name}")
        listener.listen(self._num_ranks)
        listener.settimeout(_START_S)
        return listener
