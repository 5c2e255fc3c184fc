"""A link over a socket that never blocks."""

from __future__ import annotations

import contextlib
import socket

from phalanx.launch.hosts.link import Link, Message

_READ_BYTES = 1 << 18
_MOST_WAITING_BYTES = 1 << 26  # the other end does not read any more


class LinkStream:
    """One end of a connection. Not for several threads.

    Args:
        connection: A connected socket, or one that is about to be.
        token: The job's secret.
        is_server: Whether this end has listened.
    """

    def __init__(self, connection: socket.socket, token: str, *, is_server: bool) -> None:
        self._socket = connection
        self._socket.setblocking(False)
        with contextlib.suppress(OSError):
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._link = Link(token, is_server=is_server)

    def fileno(self) -> int:
        """Return the descriptor of the socket."""
        return self._socket.fileno()

    @property
    def is_open(self) -> bool:
        """Whether both ends have proved that they have the token."""
        return self._link.is_open

    @property
    def is_waiting(self) -> bool:
        """Whether there is something to send."""
        return bool(self._link.outgoing)

    def send(self, message: Message) -> None:
        """Send a message as soon as possible.

        Raises:
            OSError: The other end is gone, or has not read for a long time.
        """
        self._link.send(message)
        self.flush()

    def flush(self) -> None:
        """Send what can be sent now.

        Raises:
            OSError: The other end is gone, or has not read for a long time.
        """
        outgoing = self._link.outgoing
        with contextlib.suppress(BlockingIOError):
            while outgoing:
                del outgoing[: self._socket.send(outgoing)]
        if len(outgoing) > _MOST_WAITING_BYTES:
            raise BrokenPipeError("the other end does not read")

    def read(self) -> list[Message]:
        """Return the messages that have come.

        Raises:
            EOFError: The other end has closed the connection.
            OSError: The connection is broken.
            LinkError: The other end does not belong to the job.
        """
        try:
            data = self._socket.recv(_READ_BYTES)
        except BlockingIOError:
            return []
        if not data:
            raise EOFError
        try:
            return self._link.feed(data)
        finally:
            with contextlib.suppress(OSError):
                self.flush()

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()
