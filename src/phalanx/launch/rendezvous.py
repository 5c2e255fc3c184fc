"""What torch's own backends need to find each other: a store that only this user can reach, and a port's number.

The store is a memory file of the launcher. Ranks open it through /proc as a FileStore of torch's: no port is opened, no
file is left behind, and the kernel lets nobody but the same user in. The port is bound, so that nobody else is given
it, but nothing listens there. It is for programs that make a TCPStore themselves: the port is theirs then. Another user
who asks for this very number can have it before them, as with every port that its server has not yet bound.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator
from typing import NamedTuple

HOST = "127.0.0.1"


class Rendezvous(NamedTuple):
    """Where ranks of one world meet.

    Attributes:
        port: For MASTER_PORT; 0 where none can be had, such as in a container that has no network at all.
        store: The file of torch's store; empty when there is none.
    """

    port: int
    store: str


NOWHERE = Rendezvous(0, "")


@contextlib.contextmanager
def open_rendezvous() -> Iterator[Rendezvous]:
    """Hold a store and a port for as long as the world's ranks run."""
    memory = os.memfd_create("phalanx-store", os.MFD_CLOEXEC)
    try:
        os.fchmod(memory, 0o600)
        with _claim_port() as port:
            yield Rendezvous(port, f"/proc/{os.getpid()}/fd/{memory}")
    finally:
        os.close(memory)


@contextlib.contextmanager
def _claim_port() -> Iterator[int]:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as claim:
        try:
            claim.bind((HOST, 0))
        except OSError:
            yield 0
            return
        # From now on a rank may bind it too, as servers do; the kernel gives it to nobody by itself.
        claim.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        yield claim.getsockname()[1]
