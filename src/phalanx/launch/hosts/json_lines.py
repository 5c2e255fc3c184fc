"""Messages between a launcher and its agent: JSON, one in each line, over a pair of sockets that nobody else has."""

from __future__ import annotations

import contextlib
import json
import select
import socket

from phalanx.launch.hosts.link import Message

_READ_BYTES = 1 << 18


class JsonLines:
    """One end. Not for several threads; it never waits."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._socket.setblocking(False)
        self._received = b""
        self._outgoing = bytearray()

    def fileno(self) -> int:
        """Return the descriptor of the socket."""
        return self._socket.fileno()

    @property
    def is_waiting(self) -> bool:
        """Whether there is something to send."""
        return bool(self._outgoing)

    def send(self, message: Message) -> None:
        """Send a message as soon as possible; do nothing if the other end is gone, which read() tells."""
        self._outgoing += json.dumps(message).encode() + b"\n"
        self.flush()

    def flush(self) -> None:
        """Send what can be sent now."""
        try:
            while self._outgoing:
                del self._outgoing[: self._socket.send(self._outgoing)]
        except BlockingIOError:
            pass
        except OSError:
            self._outgoing.clear()

    def read(self) -> list[Message]:
        """Return the messages that have come.

        Raises:
            EOFError: The other end is gone.
        """
        with contextlib.suppress(BlockingIOError):
            try:
                data = self._socket.recv(_READ_BYTES)
            except ConnectionError:
                data = b""
            if not data:
                raise EOFError
            self._received += data
        *lines, self._received = self._received.split(b"\n")
        return [json.loads(line) for line in lines]

    def close(self) -> None:
        """Close it; the other end sees that."""
        self._socket.close()

    def await_first(self) -> Message:
        """Wait for a message, and return the first that comes.

        Raises:
            EOFError: The other end has closed the connection.
        """
        poll = select.poll()
        poll.register(self.fileno(), select.POLLIN)
        while True:
            poll.poll()
            for message in self.read():
                return message
