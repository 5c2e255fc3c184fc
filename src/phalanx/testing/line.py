"""The line between a crew and one of its ranks: tasks one way, reports and notices the other.

    crew  --(side: descriptor of the task's memory; channel: the task)-->  rank
          <-(side: notices, some with a descriptor; channel: the report)--

Two sockets, because a descriptor can only travel with a small packet and a report may be large.
"""

from __future__ import annotations

import os
import pickle
import socket
import struct
from dataclasses import dataclass
from typing import Any

from phalanx.launch.receiving import receive_with_descriptors

_LENGTH = struct.Struct("!Q")
_SEND_S = 30.0
_PACKET_BYTES = 1 << 16


@dataclass
class Line:
    """One end of it."""

    channel: socket.socket
    side: socket.socket

    def close(self) -> None:
        """Hang up."""
        self.channel.close()
        self.side.close()

    def send(self, body: bytes) -> None:
        """Send a task or a report.

        Raises:
            OSError: The other end is gone.
        """
        self.channel.settimeout(_SEND_S)  # the other end may be stopped
        try:
            self.channel.sendall(_LENGTH.pack(len(body)) + body)
        finally:
            self.channel.settimeout(None)

    def receive(self) -> bytes | None:
        """Wait for one; None when the other end has hung up."""
        header = self._receive_exactly(_LENGTH.size)
        return None if header is None else self._receive_exactly(_LENGTH.unpack(header)[0])

    def _receive_exactly(self, count: int) -> bytes | None:
        parts = bytearray()
        while len(parts) < count:
            part = self.channel.recv(min(count - len(parts), 1 << 20))
            if not part:
                return None
            parts += part
        return bytes(parts)

    def notify(self, *what: Any, descriptor: int | None = None) -> None:
        """Send a small message at once, with a descriptor if there is one.

        Raises:
            OSError: The other end is gone.
        """
        socket.send_fds(self.side, [pickle.dumps(what)], [] if descriptor is None else [descriptor])

    def ask_gone(self) -> tuple[frozenset[int], frozenset[int]]:
        """On a rank: ask which ranks are dead, and which are done."""
        self.notify("gone?")
        answer = self.receive_notice()
        return (frozenset(), frozenset()) if answer is None else (answer[0][1], answer[0][2])

    def receive_notice(self, *, block: bool = True) -> tuple[tuple[Any, ...], int | None] | None:
        """Return a small message and its descriptor, which is the caller's now; None when there is none to come.

        Raises:
            BlockingIOError: There is none yet, and block is False.
        """
        flags = 0 if block else socket.MSG_DONTWAIT
        try:
            body, descriptors = receive_with_descriptors(self.side, _PACKET_BYTES, 1, flags)
        except ConnectionError:
            return None
        if not body:
            return None
        return pickle.loads(body), (descriptors[0] if descriptors else None)


class Inbox:
    """What has come through a channel so far, for a reader that must not block."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    def read(self, channel: socket.socket) -> bytes | None:
        """Take what is there.

        Returns:
            A message when it is complete, else None.

        Raises:
            EOFError: The other end has hung up.
            BlockingIOError: There is nothing.
        """
        part = channel.recv(1 << 20, socket.MSG_DONTWAIT)
        if not part:
            raise EOFError
        self._bytes += part
        if len(self._bytes) < _LENGTH.size:
            return None
        (length,) = _LENGTH.unpack_from(self._bytes)
        if len(self._bytes) < _LENGTH.size + length:
            return None
        message = bytes(self._bytes[_LENGTH.size : _LENGTH.size + length])
        del self._bytes[: _LENGTH.size + length]
        return message


def open_line() -> tuple[Line, Line]:
    """Return the crew's end and the rank's."""
    channels = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    sides = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    return Line(channels[0], sides[0]), Line(channels[1], sides[1])


def close_descriptor(descriptor: int | None) -> None:
    """Close one that came with a notice, if any did."""
    if descriptor is not None:
        os.close(descriptor)
