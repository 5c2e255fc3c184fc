"""Messages between two processes of one user, with descriptors, over a Unix socket.

A frame is a header (bytes of the body, number of descriptors), then one byte for each batch of descriptors, which
travel with that byte, then the body. A process that reads without blocking keeps incomplete messages in a FrameReader.
"""

from __future__ import annotations

import array
import errno
import os
import pickle
import socket
import struct
import threading
from collections.abc import Sequence
from typing import Any

_HEADER = struct.Struct("!QQ")
_DESCRIPTORS_PER_BATCH = 200  # the kernel takes 253
_READ_BYTES = 1 << 20


def receive_with_descriptors(
    connection: socket.socket, most_bytes: int, most_descriptors: int, flags: int = 0
) -> tuple[bytes, list[int]]:
    """Return the next message and its descriptors; some are missing if this process has reached its limit.

    Unlike socket.recv_fds(), which ignores its flags, it asks for descriptors that are closed on exec.

    Raises:
        OSError: Nothing could be received.
    """
    found = array.array("i")
    room = socket.CMSG_LEN(most_descriptors * found.itemsize)
    message, extras, _, _ = connection.recvmsg(most_bytes, room, flags | socket.MSG_CMSG_CLOEXEC)
    for level, kind, data in extras:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            found.frombytes(data[: len(data) - len(data) % found.itemsize])
    return message, list(found)


class FrameReader:
    """The data that a stream socket has received so far. Not for several threads."""

    def __init__(self) -> None:
        self._bytes = bytearray()
        self._num_taken = 0  # bytes of frames that were returned before
        self._descriptors: list[tuple[int, int]] = []  # each with the number of bytes received before it

    def read(self, stream: socket.socket, flags: int = 0) -> tuple[bytes, list[int]] | None:
        """Return the next frame if it is complete; else receive once, and return the frame if it is complete now.

        Raises:
            EOFError: The other end has closed.
            BlockingIOError: There is nothing to receive, and the flags say not to wait.
            OSError: EMFILE: this process could not open all descriptors of a frame. The next frame may succeed.
        """
        found = self._take()
        if found is not None:
            return found
        part, descriptors = receive_with_descriptors(stream, _READ_BYTES, _DESCRIPTORS_PER_BATCH, flags)
        if not part:
            raise EOFError
        self._bytes += part
        self._descriptors += [(self._num_taken + len(self._bytes), descriptor) for descriptor in descriptors]
        return self._take()

    def close(self) -> None:
        """Close the descriptors that were not returned."""
        for _, descriptor in self._descriptors:
            os.close(descriptor)
        self._descriptors.clear()

    def _take(self) -> tuple[bytes, list[int]] | None:
        if len(self._bytes) < _HEADER.size:
            return None
        body_bytes, num_descriptors = _HEADER.unpack_from(self._bytes)
        start = _HEADER.size + -(-num_descriptors // _DESCRIPTORS_PER_BATCH)
        if len(self._bytes) < start + body_bytes:
            return None
        body = bytes(self._bytes[start : start + body_bytes])
        del self._bytes[: start + body_bytes]
        self._num_taken += start + body_bytes
        own = [descriptor for position, descriptor in self._descriptors if position <= self._num_taken]
        self._descriptors = self._descriptors[len(own) :]
        if len(own) < num_descriptors:
            for descriptor in own:
                os.close(descriptor)
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return body, own


class Connection:
    """One end of a stream socket for messages, which are pickled objects. Threads may send, and one may receive."""

    def __init__(self, stream: socket.socket) -> None:
        self.stream = stream
        self._reader = FrameReader()
        self._sending = threading.Lock()  # guards the stream: a message goes in one piece

    def fileno(self) -> int:
        """Return a descriptor that becomes readable when a message arrives."""
        return self.stream.fileno()

    def close(self) -> None:
        """Close it; the other end sees that."""
        self.stream.close()
        self._reader.close()

    def send(self, message: object, descriptors: Sequence[int] = (), *, timeout_s: float | None = None) -> None:
        """Send a message and descriptors.

        Raises:
            OSError: The other end is gone, or has not read for that long.
        """
        body = pickle.dumps(message)
        with self._sending:
            self.stream.settimeout(timeout_s)
            try:
                self.stream.sendall(_HEADER.pack(len(body), len(descriptors)))
                for start in range(0, len(descriptors), _DESCRIPTORS_PER_BATCH):
                    socket.send_fds(self.stream, [b"d"], descriptors[start : start + _DESCRIPTORS_PER_BATCH])
                self.stream.sendall(body)
            finally:
                self.stream.settimeout(None)

    def receive(self) -> tuple[Any, list[int]] | None:
        """Wait for a message; return it with its descriptors, which the caller must close. None at the end.

        Raises:
            OSError: EMFILE: this process could not open all its descriptors.
        """
        try:
            while (frame := self._reader.read(self.stream)) is None:
                pass
        except (EOFError, ConnectionError):
            return None
        return pickle.loads(frame[0]), frame[1]

    def receive_nowait(self) -> tuple[Any, list[int]] | None:
        """Return a message as receive() does, or None when none is complete.

        Raises:
            EOFError: There are no more.
        """
        try:
            while (frame := self._reader.read(self.stream, socket.MSG_DONTWAIT)) is None:
                pass
        except BlockingIOError:
            return None
        except ConnectionError:
            raise EOFError from None
        return pickle.loads(frame[0]), frame[1]


def connected_pair() -> tuple[Connection, Connection]:
    """Return both ends of a new connection."""
    ours, theirs = socket.socketpair()
    return Connection(ours), Connection(theirs)
