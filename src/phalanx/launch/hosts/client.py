"""A rank's connection to the rendezvous server of its job. All waits keep to their limits."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Sequence
from typing import Any

from phalanx.errors import OperationTimeoutError, PeerError, UsageError
from phalanx.launch.hosts.addresses import Endpoint
from phalanx.launch.hosts.link import Link, LinkError, Message

_CONNECT_S = 10.0
_ANSWER_S = 10.0  # for requests that need not wait for other ranks
_BETWEEN_ATTEMPTS_S = 0.1
_SLICE_S = 0.5  # a wait holds the connection for this time, and then other threads get it
_READ_BYTES = 1 << 18


class ServerClient:
    """The connection, which is made when it is first used. Threads may share it; a forked child makes its own.

    Args:
        place: Where the server is.
        token: The job's secret.
    """

    def __init__(self, place: Endpoint, token: str) -> None:
        self.place = place
        self._token = token
        self._lock = threading.Lock()  # guards the connection: one request at a time goes through it
        self._socket: socket.socket | None = None
        self._link = Link("", is_server=False)
        self._owner = 0
        self._num_requests = 0

    def request(self, message: Message, limit_s: float = _ANSWER_S) -> Message:
        """Send a request, and return its answer.

        Raises:
            OperationTimeoutError: There was no answer in time.
            PeerError: The server is gone.
            UsageError: The server belongs to another job, or the request was wrong.
        """
        with self._lock:
            try:
                answer: Message = self._exchange(message, time.monotonic() + limit_s)
            except LinkError:
                self._close()
                raise UsageError(
                    f"{self.place} does not accept the token of this rank\n"
                    "  do       let phalanx run set PHALANX_JOB_TOKEN and PHALANX_RDZV; don't change them"
                ) from None
            except TimeoutError:
                self._close()  # the answer may still come, and nobody would expect it
                raise OperationTimeoutError(f"{self._server()} has not answered for {limit_s:.3g} s") from None
            except (OSError, EOFError) as error:
                self._close()
                why = getattr(error, "strerror", None) or "the connection has ended"
                raise PeerError(f"{self._server()} is gone: {why}") from None
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

    def clone(self) -> ServerClient:
        """Return another connection to the same server."""
        return ServerClient(self.place, self._token)

    def close(self) -> None:
        """Close the connection."""
        with self._lock:
            self._close()

    def _server(self) -> str:
        return f"the rendezvous server of the job at {self.place}"

    def _exchange(self, message: Message, deadline: float) -> Any:
        if self._owner != os.getpid():
            self._close()
        if self._socket is None:
            self._connect(deadline)
        assert self._socket is not None
        self._num_requests += 1
        self._link.send({**message, "id": self._num_requests})
        self._flush(deadline)
        while True:
            for answer in self._receive(deadline):
                if answer.get("id") == self._num_requests:
                    return answer

    def _connect(self, deadline: float) -> None:
        deadline = min(deadline, time.monotonic() + _CONNECT_S)
        while True:
            try:
                self._shake_hands(deadline)
                return
            except EOFError:  # strangers occupy the server: it closes further connections at once
                self._close()
                if time.monotonic() > deadline:
                    raise
                time.sleep(_BETWEEN_ATTEMPTS_S)

    def _shake_hands(self, deadline: float) -> None:
        self._socket = socket.create_connection(self.place, timeout=max(0.001, deadline - time.monotonic()))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._owner = os.getpid()
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
        self._socket.settimeout(max(0.001, deadline - time.monotonic()))
        data = self._socket.recv(_READ_BYTES)
        if not data:
            raise EOFError
        return self._link.feed(data)

    def _close(self) -> None:
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.close()
            self._socket = None
