"""The ranks of one contender, kept waiting for orders so that contenders can take turns.

A waiting rank blocks in a read: it takes no processor time from the one that is being measured.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import socket
import time
from typing import Any, Protocol, TextIO

from phalanx.launch.meeting import is_same_user
from phalanx_tools.bench.cases import Case
from phalanx_tools.bench.worker_torch import socket_name

_START_TIMEOUT_S = 120.0
_ORDER_TIMEOUT_S = 300.0


class Starter(Protocol):
    """Starts the ranks of a contender, and ends them."""

    def start(self, address: str) -> None:
        """Start ranks that connect to a Unix socket: an abstract name, or a path."""

    def failure(self) -> str | None:
        """Return why not all ranks run, or None if they do as far as is known."""

    def end(self) -> None:
        """Wait for the end of the ranks, whose connections are closed; end those that stay."""


class Team:
    """Ranks of one contender. Use as a context manager.

    Args:
        contender: Its name.
        num_ranks: How many there are.
        starter: Starts them.
        address: Where they connect to: a path if they may be on several hosts; else an abstract name is made.
    """

    def __init__(self, contender: str, num_ranks: int, starter: Starter, address: str = "") -> None:
        self.contender = contender
        self.version = ""
        self._num_ranks = num_ranks
        self._starter = starter
        self._address = address or f"phalanx-bench-{secrets.token_hex(8)}"
        self._server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._server.bind(socket_name(self._address))
        self._server.listen(num_ranks)
        self._server.settimeout(0.2)
        self._streams: dict[int, TextIO] = {}

    def __enter__(self) -> Team:
        try:
            self._starter.start(self._address)
            for _ in range(self._num_ranks):
                self._admit()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for stream in self._streams.values():
            with contextlib.suppress(OSError):
                stream.close()
        self._server.close()
        self._starter.end()

    def _admit(self) -> None:
        connection = self._accept()
        connection.settimeout(_ORDER_TIMEOUT_S)
        stream = connection.makefile("rw")
        connection.close()  # the stream holds it
        hello = json.loads(stream.readline())
        self.version = hello["version"]
        self._streams[hello["rank"]] = stream

    def _accept(self) -> socket.socket:
        """Wait for a rank, but not for ranks that have failed."""
        deadline = time.monotonic() + _START_TIMEOUT_S
        while time.monotonic() < deadline and self._starter.failure() is None:
            try:
                connection = self._server.accept()[0]
            except TimeoutError:
                continue
            if is_same_user(connection):
                return connection
            connection.close()
        raise OSError(f"{self.contender} did not start: {(self._starter.failure() or 'no answer').strip()[-500:]}")

    def _order(self, **order: Any) -> list[dict[str, Any]]:
        for stream in self._streams.values():
            stream.write(json.dumps(order) + "\n")
            stream.flush()
        return [self._answer(rank) for rank in range(self._num_ranks)]

    def _answer(self, rank: int) -> dict[str, Any]:
        line = self._streams[rank].readline()
        if not line:
            self._starter.end()
            raise RuntimeError(f"rank {rank} of {self.contender} ended: {self._starter.failure() or 'see its output'}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def prepare(self, case: Case) -> bool:
        """Allocate, run once, and tell whether every rank got the right result."""
        return all(
            answer["correct"] for answer in self._order(do="prepare", operation=case.operation, bytes=case.bytes)
        )

    def time(self, iterations: int) -> float:
        """Return the seconds that the slowest rank needed for that many operations."""
        return max(float(answer["elapsed_s"]) for answer in self._order(do="time", iterations=iterations))
