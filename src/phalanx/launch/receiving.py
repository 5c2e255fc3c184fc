"""Descriptors that another process sends through a Unix socket, kept from the programs that this process starts."""

from __future__ import annotations

import array
import socket


def receive_with_descriptors(
    connection: socket.socket, most_bytes: int, most_descriptors: int, flags: int = 0
) -> tuple[bytes, list[int]]:
    """Return the next message and its descriptors: fewer than were sent where this process may open no more.

    Unlike socket.recv_fds() it asks for descriptors that are closed on exec; that function forgets all flags.

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
