"""A bed that stands until it is told to go, for people who try things out: the process behind `./dev hosts`.

It listens at an abstract Unix address, one for each user, so there is one standing bed at a time and nothing to remove.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from typing import Any

from phalanx_tools.hosts.bed import Bed, hosts
from phalanx_tools.hosts.host import python_command

_ORDERS = ("cut", "mend", "lose", "pass")
_ANSWER_S = 20.0
_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid
_LONGEST = 1 << 16


class NoStandingBed(Exception):
    """There is none."""


def raise_bed(number: int, rate: str, delay_us: float, *, has_loopback_names: bool) -> dict[str, Any]:
    """Start the process, and return what describe() says once the hosts are there.

    Raises:
        OSError: There is a bed already, or none can be made.
    """
    command = python_command("standing", str(number), rate, str(delay_us), "loopback" if has_loopback_names else "")
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True, cwd="/",
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stderr is not None
    if process.stdout.readline() != "up\n":
        raise OSError((process.stderr.read().strip().splitlines() or ["the hosts don't start"])[-1])
    process.stdout.close()
    process.stderr.close()
    return ask("describe")


def ask(order: str, host: int = 0) -> dict[str, Any]:
    """Send an order to the standing bed and return its answer.

    Args:
        order: "describe", "down", or an order about a host: "cut", "mend", "lose", "pass".
        host: Its number.

    Raises:
        NoStandingBed: There is none.
        OSError: It refuses, or does not answer.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        connection.settimeout(_ANSWER_S)
        try:
            connection.connect(_address())
        except ConnectionRefusedError:
            raise NoStandingBed("there are no hosts; make some with: ./dev hosts up") from None
        if not _is_ours(connection):
            raise OSError("another user has taken the address of the hosts")
        connection.send(json.dumps([order, host]).encode())
        answer: dict[str, Any] = json.loads(connection.recv(_LONGEST) or b'{"error": "the hosts are gone"}')
    if "error" in answer:
        raise OSError(answer["error"])
    return answer


def lower_bed() -> None:
    """Remove the standing bed, and wait until it is gone.

    Raises:
        NoStandingBed: There is none.
        OSError: It does not go.
    """
    ask("down")
    deadline = time.monotonic() + _ANSWER_S
    while time.monotonic() < deadline:
        try:
            ask("describe")
        except NoStandingBed:
            return
        except OSError:  # it closes the connection while it ends
            pass
        time.sleep(0.01)
    raise OSError(f"the hosts are still there after {_ANSWER_S:g} s")


def main(number: str, rate: str, delay_us: str, names: str) -> None:
    """Be the process: make the hosts, obey until "down"."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as server:
        try:
            server.bind(_address())
        except OSError:
            sys.exit("there are hosts already; remove them with: ./dev hosts down")
        with hosts(int(number), rate=rate, delay_us=float(delay_us), has_loopback_names=bool(names)) as bed:
            server.listen()
            print("up", flush=True)
            _detach()
            while _serve(server, bed):
                pass
            server.shutdown(socket.SHUT_RDWR)  # who asks from now on is refused once the address is free


def _detach() -> None:
    nowhere = os.open(os.devnull, os.O_RDWR)
    for descriptor in (1, 2):
        os.dup2(nowhere, descriptor)
    os.close(nowhere)


def _serve(server: socket.socket, bed: Bed) -> bool:
    """Answer one question; return whether to go on."""
    connection = server.accept()[0]
    with connection:
        connection.settimeout(_ANSWER_S)
        if not _is_ours(connection):
            return True
        try:
            order, host = json.loads(connection.recv(_LONGEST))
            answer = _obey(bed, order, host)
            connection.send(json.dumps(answer).encode())
        except (OSError, ValueError):  # a client that went away
            return True
    return bool(order != "down")


def _obey(bed: Bed, order: str, host: int) -> dict[str, Any]:
    if order in _ORDERS:
        if not 0 <= host < len(bed):
            return {"error": f"there is no host {host}: there are 0 to {len(bed) - 1}"}
        bed[host].switch.order(order, host)
    return {
        "hosts": [
            {"name": each.name, "address": each.address, "init": each.init,
             "sent": each.bytes_sent(), "received": each.bytes_received()}
            for each in bed
        ]
    }  # fmt: skip


def _address() -> str:
    return f"\0phalanx-hosts-{os.geteuid()}"


def _is_ours(connection: socket.socket) -> bool:
    option = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return bool(_CREDENTIALS.unpack(option)[1] == os.geteuid())
