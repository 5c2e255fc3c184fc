"""A rank's connections to the rendezvous server of its job. All waits keep to their limits."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable, Sequence

from phalanx.errors import OperationTimeoutError, PeerError, UsageError
from phalanx.launch.hosts.addresses import Endpoint
from phalanx.launch.hosts.link import Link, LinkError, Message

_CONNECT_S = 10.0
_ANSWER_S = 10.0  # for requests that need not wait for other ranks
_BETWEEN_ATTEMPTS_S = 0.1
_SLICE_S = 2.0  # a wait asks again after this time, so that it notices a server that does not answer
_LOOK_S = 0.25  # between two looks at what could end a wait
_READ_BYTES = 1 << 18


class ServerClient:
    """The connections of a process, which are made when they are needed. Threads may share it.

    A request has a connection to itself until its answer has come. So a thread that waits for a value does not keep
    another one from writing it.

    Args:
        place: Where the server is.
        token: The job's secret.
        look: Called again and again while a request waits for its answer; what it raises ends the request.
    """

    def __init__(self, place: Endpoint, token: str, look: Callable[[], None] = lambda: None) -> None:
        self.place = place
        self._token = token
        self._look = look
        self._lock = threading.Lock()  # guards _idle and _owner
        self._idle: list[_Connection] = []
        self._owner = os.getpid()

    def request(self, message: Message, limit_s: float = _ANSWER_S) -> Message:
        """Send a request, and return its answer.

        Raises:
            OperationTimeoutError: There was no answer in time.
            PeerError: The server is gone.
            UsageError: The server belongs to another job, or the request was wrong.
        """
        connection = self._take()
        try:
            answer = connection.exchange(message, time.monotonic() + limit_s)
        except BaseException as error:
            connection.close()  # an answer may still come, and nobody would expect it
            raise self._in_words(error, limit_s) from None
        with self._lock:
            self._idle.append(connection)
        if "error" in answer:
            raise UsageError(f"{self._server()} refuses a request: {answer['error']}")
        return answer

    def get(self, keys: Sequence[str], timeout_s: float) -> list[str] | None:
        """Wait until all these keys have values, and return the values; None if that takes too long.

        Raises:
            PhalanxError: As request().
        """
        deadline = time.monotonic() + timeout_s
        while True:
            wait_s = max(0.0, min(_SLICE_S, deadline - time.monotonic()))
            answer = self.request({"op": "get", "keys": list(keys), "wait_s": wait_s}, wait_s + _ANSWER_S)
            if "values" in answer:
                values: list[str] = answer["values"]
                return values
            if time.monotonic() >= deadline:
                return None

    def close(self) -> None:
        """Close the connections that no thread uses."""
        with self._lock:
            for connection in self._idle:
                connection.close()
            self._idle.clear()

    def _take(self) -> _Connection:
        with self._lock:
            if self._owner != os.getpid():  # a forked child must not use the connections of its parent
                self._owner = os.getpid()
                for connection in self._idle:
                    connection.close()
                self._idle.clear()
            return self._idle.pop() if self._idle else _Connection(self.place, self._token, self._look)

    def _server(self) -> str:
        return f"the rendezvous server of the job at {self.place}"

    def _in_words(self, error: BaseException, limit_s: float) -> BaseException:
        if isinstance(error, LinkError):
            return UsageError(
                f"{self.place} does not accept the token of this rank\n"
                "  do       let phalanx run set PHALANX_JOB_TOKEN and PHALANX_RDZV; don't change them"
            )
        if isinstance(error, TimeoutError):
            return OperationTimeoutError(f"{self._server()} has not answered for {limit_s:.3g} s")
        if isinstance(error, (OSError, EOFError)):
            why = getattr(error, "strerror", None) or "the connection has ended"
            return PeerError(f"{self._server()} is gone: {why}")
        return error


class _Connection:
    """One connection, for one thread at a time."""

    def __init__(self, place: Endpoint, token: str, look: Callable[[], None]) -> None:
        self._place = place
        self._token = token
        self._look = look
        self._socket: socket.socket | None = None
        self._link = Link(token, is_server=False)
        self._num_requests = 0

    def exchange(self, message: Message, deadline: float) -> Message:
        """Send a request, and wait for its answer.

        Raises:
            TimeoutError: There was no answer in time.
            EOFError: The server is gone.
            OSError: The server is gone, or can't be reached.
            LinkError: The server belongs to another job.
        """
        if self._socket is None:
            self._connect(deadline)
        self._num_requests += 1
        self._link.send({**message, "id": self._num_requests})
        self._flush(deadline)
        while True:
            for answer in self._receive(deadline):
                if answer.get("id") == self._num_requests:
                    return answer

    def close(self) -> None:
        """Close it."""
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.close()
            self._socket = None

    def _connect(self, deadline: float) -> None:
        deadline = min(deadline, time.monotonic() + _CONNECT_S)
        while True:
            try:
                self._shake_hands(deadline)
                return
            except (EOFError, ConnectionResetError, BrokenPipeError):  # strangers crowd the server: see _make_room()
                self.close()
                if time.monotonic() > deadline:
                    raise
                time.sleep(_BETWEEN_ATTEMPTS_S)

    def _shake_hands(self, deadline: float) -> None:
        self._socket = socket.create_connection(self._place, timeout=max(0.001, deadline - time.monotonic()))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._link = Link(self._token, is_server=False)
        while not self._link.is_open:
            self._receive(deadline)
            self._flush(deadline)

    def _flush(self, deadline: float) -> None:
        assert self._socket is not None
        if self._link.outgoing:
            self._socket.settimeout(max(0.001, deadline - time.monotonic()))
            self._socket.sendall(self._link.outgoing)
            self._link.outgoing.clear()

    def _receive(self, deadline: float) -> list[Message]:
        assert self._socket is not None
        while True:
            left_s = max(0.001, deadline - time.monotonic())
            self._socket.settimeout(min(left_s, _LOOK_S))
            try:
                data = self._socket.recv(_READ_BYTES)
            except TimeoutError:
                self._look()
                if left_s <= _LOOK_S:
                    raise
                continue
            if not data:
                raise EOFError
            return self._link.feed(data)
