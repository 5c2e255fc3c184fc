"""A connection between two hosts that waits for one message after the other, each with a time limit."""

from __future__ import annotations

import select
import socket
import time
from typing import Any

from phalanx.launch.hosts.link import LinkError, Message
from phalanx.launch.hosts.stream import LinkStream


class Conversation:
    """One end of a connection. Not for several threads.

    Args:
        connection: A connected socket. It is closed with the conversation.
        token: The job's secret, which the other end must prove to have.
        is_server: Whether this end has listened.
        timeout_s: How long the other end may take for its proof.

    Raises:
        LinkError: The other end has another token, or does not speak this protocol.
        OSError: The other end is gone.
        TimeoutError: It says nothing.
    """

    def __init__(self, connection: socket.socket, token: str, *, is_server: bool, timeout_s: float) -> None:
        self._stream = LinkStream(connection, token, is_server=is_server)
        self._messages: list[Message] = []
        self._stream.flush()
        try:
            self._wait(lambda: self._stream.is_open, timeout_s)
        except BaseException:
            self.close()
            raise

    def send(self, message: dict[str, Any]) -> None:
        """Send a message.

        Raises:
            OSError: The other end is gone.
        """
        self._stream.send(message)
        while self._stream.is_waiting:
            select.select([], [self._stream], [])
            self._stream.flush()

    def receive(self, timeout_s: float) -> Message:
        """Wait for the next message.

        Raises:
            OSError: The other end is gone.
            TimeoutError: It says nothing.
        """
        self._wait(lambda: bool(self._messages), timeout_s)
        return self._messages.pop(0)

    def is_gone(self) -> bool:
        """Tell whether the other end has closed the connection. Messages that it has sent before are kept."""
        try:
            self._wait(lambda: False, 0)
        except TimeoutError:
            return False
        except (OSError, LinkError):
            return True
        return False

    def close(self) -> None:
        """Close the connection."""
        self._stream.close()

    def _wait(self, is_done: Any, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while not is_done():
            if not select.select([self._stream], [], [], max(0.0, deadline - time.monotonic()))[0]:
                raise TimeoutError("no answer")
            try:
                self._messages += self._stream.read()
            except EOFError:
                raise ConnectionResetError("the other end has closed the connection") from None
