"""Small programs that tests run on hosts; they need no phalanx."""

from __future__ import annotations

import subprocess
import sys

from tests.hosts.bed import Host

_PORT = 5000

_RECEIVER = f"""
import socket
server = socket.create_server(("", {_PORT}))
print("listening", flush=True)
connection = server.accept()[0]
connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
while data := connection.recv(1 << 20):
    if len(data) == 1:
        connection.sendall(data)
connection.sendall(b"x")
"""

_SENDER = f"""
import socket, sys, time
connection = socket.create_connection((sys.argv[1], {_PORT}), 10)
connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
trips = []
for _ in range(30):
    start = time.perf_counter()
    connection.sendall(b"x")
    connection.recv(1)
    trips.append(time.perf_counter() - start)
start = time.perf_counter()
connection.sendall(bytes(int(sys.argv[2])))
connection.shutdown(socket.SHUT_WR)
connection.recv(1)
print(min(trips), time.perf_counter() - start)
"""

_CONNECT = f"""
import socket, sys
try:
    socket.create_connection((sys.argv[1], {_PORT}), float(sys.argv[2])).close()
    print("connected")
except OSError as error:
    print(type(error).__name__)
"""


def python(host: Host, program: str, *arguments: object, timeout_s: float = 60) -> str:
    """Run a Python program on a host and return what it prints."""
    return host.run(sys.executable, "-Ic", program, *map(str, arguments), timeout_s=timeout_s).strip()


def listen(host: Host) -> subprocess.Popen[str]:
    """Start a receiver and wait until it listens."""
    process = host.start(sys.executable, "-Ic", _RECEIVER, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == "listening\n"
    return process


def send(host: Host, target: Host, count: int) -> tuple[float, float]:
    """Send zeros to a receiver; return the shortest round trip and the time of the transfer, in seconds."""
    trip, took = python(host, _SENDER, target.name, count).split()
    return float(trip), float(took)


def try_to_connect(host: Host, target: Host, timeout_s: float) -> str:
    """Return "connected", or the kind of the error."""
    return python(host, _CONNECT, target.name, timeout_s)
