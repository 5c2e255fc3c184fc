"""The path from one host to another: whether it can be connected to, its round trip and rate, and the other's clock.

Each host listens at a port that the kernel chooses, as the engines for collectives do, so a firewall between hosts
shows.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import struct
import threading
import time
from dataclasses import asdict, dataclass
from typing import Any

from phalanx.doctor.hosts.facts import HostFacts
from phalanx.errors import UsageError

_CONNECT_S = 5.0
_TRANSFER_S = 10.0  # without any progress
_LONGEST_TRANSFER_S = 0.5
_NUM_TRIPS = 50
_BLOCK = 1 << 18
_TIME = struct.Struct("!d")
_WORD_BYTES = 16
_END, _PING, _BLOCKS = b"e", b"p", b"b"


@dataclass(frozen=True)
class Path:
    """What one host has measured on the way to another.

    Attributes:
        problem: What went wrong, or "".
        trip_s: The shortest round trip of a byte.
        bits_per_s: How fast a long message goes.
        clock_s: By how much the other clock is ahead.
    """

    problem: str = ""
    trip_s: float = 0.0
    bits_per_s: float = 0.0
    clock_s: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """Return what json can write."""
        return asdict(self)

    @staticmethod
    def from_json(value: Any) -> Path:
        """Read what to_json() returned.

        Raises:
            UsageError: The value is no such measurement.
        """
        names = ("trip_s", "bits_per_s", "clock_s")
        if not isinstance(value, dict) or not isinstance(value.get("problem"), str):
            raise UsageError("this is no measurement")
        if not all(isinstance(value.get(name), int | float) for name in names):
            raise UsageError("this is no measurement")
        return Path(value["problem"], *(float(value[name]) for name in names))


class PathServer:
    """Answers other hosts that measure, on a thread, until it is left. It answers only hosts that know its word.

    Raises:
        OSError: The address is not one of this host.
    """

    def __init__(self, address: str) -> None:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self._listener = socket.create_server((address, 0), family=family)
        self.port = int(self._listener.getsockname()[1])
        self.word = secrets.token_hex(_WORD_BYTES)
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def __enter__(self) -> PathServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)  # ends accept()
        self._thread.join()
        self._listener.close()

    def _serve(self) -> None:
        while True:
            try:
                connection = self._listener.accept()[0]
            except OSError:
                return
            with connection, contextlib.suppress(OSError):
                connection.settimeout(_TRANSFER_S)
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                if secrets.compare_digest(_receive(connection, 2 * _WORD_BYTES), self.word.encode()):
                    _answer(connection)


def _answer(connection: socket.socket) -> None:
    block = bytearray(_BLOCK)
    while (order := _receive(connection, 1)) != _END:
        if order == _PING:
            connection.sendall(_TIME.pack(time.time()))
            continue
        while _receive(connection, 1) == _BLOCKS:
            _receive_into(connection, block)
        connection.sendall(_END)


def measure_path(target: HostFacts) -> Path:
    """Connect to another host, and measure."""
    try:
        connection = socket.create_connection((target.address, target.port), _CONNECT_S)
    except OSError as error:
        return Path(f"can't be connected to at port {target.port}: {_reason(error, _CONNECT_S)}")
    with connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.settimeout(_TRANSFER_S)
        try:
            connection.sendall(target.word.encode())
            trip_s, clock_s = _measure_trip(connection)
        except OSError as error:
            return Path(f"takes connections at port {target.port} and does not answer: {_reason(error, _TRANSFER_S)}")
        try:
            return Path("", trip_s, _measure_rate(connection), clock_s)
        except OSError as error:
            return Path(f"gets short messages, and no long ones: {_reason(error, _TRANSFER_S)}", trip_s, 0.0, clock_s)


def _measure_trip(connection: socket.socket) -> tuple[float, float]:
    """Return the shortest round trip, and by how much the other clock was ahead in it."""
    trips = []
    for _ in range(_NUM_TRIPS):
        sent, start = time.time(), time.perf_counter()
        connection.sendall(_PING)
        (theirs,) = _TIME.unpack(_receive(connection, _TIME.size))
        trip_s = time.perf_counter() - start
        trips.append((trip_s, theirs - (sent + trip_s / 2)))
    return min(trips)


def _measure_rate(connection: socket.socket) -> float:
    """Return the bits per second that arrive, for half a second or less."""
    block = _BLOCKS + os.urandom(_BLOCK)  # a path that compresses must not look faster
    connection.sendall(_BLOCKS)
    start, num_blocks = time.perf_counter(), 0
    while time.perf_counter() - start < _LONGEST_TRANSFER_S:
        connection.sendall(block)
        num_blocks += 1
    connection.sendall(_END)
    _receive(connection, 1)
    took_s = time.perf_counter() - start
    connection.sendall(_END)
    return num_blocks * _BLOCK * 8 / took_s


def _receive(connection: socket.socket, count: int) -> bytes:
    data = bytearray(count)
    _receive_into(connection, data)
    return bytes(data)


def _receive_into(connection: socket.socket, data: bytearray) -> None:
    view = memoryview(data)
    while view:
        count = connection.recv_into(view)
        if count == 0:
            raise ConnectionResetError("the connection was closed")
        view = view[count:]


def _reason(error: OSError, patience_s: float) -> str:
    if isinstance(error, TimeoutError):
        return f"no answer within {patience_s:g} s"
    return (error.strerror or str(error)).lower()
