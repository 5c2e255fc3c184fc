"""Send signals to processes of another user with the rights of that user, not with the superuser's.

Between the moment when a process is checked and the moment when it gets a signal, it can become another program, even
one with the rights of root. So a child that has only the rights of the process's owner sends the signal. The kernel
then checks, in the same step, that this owner could send it too. The child sends what it is told, until it is closed.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import struct

from phalanx.engine import signal_thread

_PR_SET_DUMPABLE = 4
_REQUEST = struct.Struct("iii")
_SENT = b"y"
_LONGEST_S = 0.2  # its owner may stop the child, or end it


class OwnersSignals:
    """The child for one user.

    Args:
        user: The number of the user.

    Raises:
        OSError: There can't be one more process.
    """

    def __init__(self, user: int) -> None:
        self._line, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            try:
                self._child = os.fork()
            except OSError:
                self._line.close()
                raise
            if self._child == 0:
                try:
                    self._line.close()
                    _serve(theirs, user)
                finally:
                    os._exit(0)
        self._line.settimeout(_LONGEST_S)

    def send(self, pid: int, thread: int, number: int) -> bool:
        """Send a signal to a thread; return whether it was there, and its owner may send it.

        Raises:
            OSError: The child has ended or does not answer.
        """
        self._line.send(_REQUEST.pack(pid, thread, number))
        answer = self._line.recv(1)
        if not answer:
            raise ConnectionResetError
        return answer == _SENT

    def close(self) -> None:
        """End the child."""
        self._line.close()
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._child, signal.SIGKILL)
        os.waitpid(self._child, 0)


class SignalsByOwner:
    """The children for all users whose processes get signals. One that has failed to answer is not waited for again."""

    def __init__(self) -> None:
        self._by_user: dict[int, OwnersSignals | None] = {}

    def send(self, user: int, pid: int, thread: int, number: int) -> bool:
        """Send a signal to a thread; return whether it was there, and this user may send it.

        Raises:
            OSError: The child for this user has ended or does not answer.
        """
        if user not in self._by_user:
            self._by_user[user] = OwnersSignals(user)
        child = self._by_user[user]
        if child is None:
            raise ProcessLookupError
        try:
            return child.send(pid, thread, number)
        except OSError:
            self._by_user[user] = None
            child.close()
            raise

    def close(self) -> None:
        """End all children."""
        for child in self._by_user.values():
            if child is not None:
                child.close()


def _serve(line: socket.socket, user: int) -> None:
    os.setgroups([])
    os.setresuid(user, user, user)
    # The user must not be able to look into it.
    ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
    while request := line.recv(_REQUEST.size):
        line.send(_SENT if signal_thread(*_REQUEST.unpack(request)) else b"n")
