"""What torch's own backends need to find each other: a store that only this user can open, and a port number.

The store is a memory file of the launcher. Ranks open it through /proc as a FileStore of torch: no port is opened, no
file is left behind, and the kernel refuses other users.

A FileStore writes to its path once more when it is freed. That may be long after its world has ended, in a rank that
runs one test after another or in a thread of this process. So a path never becomes another file while this process
lives: its worlds share one file, and each world uses its own prefix in it.

The port is bound, so that the kernel gives it to no other program, but nothing listens there. It is for programs that
make a TCPStore themselves and then listen on it. As with every port that a server has not bound yet, another user who
asks for this number may get it first.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import threading
from collections.abc import Iterator
from typing import NamedTuple

HOST = "127.0.0.1"

_FULL_BYTES = 1 << 18  # every store reads its file from the beginning, so a file of this size gets a successor


class Rendezvous(NamedTuple):
    """Where ranks of one world meet.

    Attributes:
        port: For MASTER_PORT; 0 if there is no free port, such as in a container without a network.
        store: The name of this world and the file of torch's store, as "name:path"; empty if there is none.
    """

    port: int
    store: str


NOWHERE = Rendezvous(0, "")


_lock = threading.Lock()
_files: list[tuple[int, int]] = []  # for each file, the process that made it and its descriptor; guarded by _lock


@contextlib.contextmanager
def open_rendezvous() -> Iterator[Rendezvous]:
    """Choose a name for this world in the store, and reserve a port while its ranks run."""
    path = f"/proc/{os.getpid()}/fd/{_store_file()}"
    with _claim_port() as port:
        yield Rendezvous(port, f"{secrets.token_hex(8)}:{path}")


def _store_file() -> int:
    with _lock:
        if _files:
            creator, memory = _files[-1]
            if creator == os.getpid() and os.fstat(memory).st_size < _FULL_BYTES:
                return memory
        memory = os.memfd_create("phalanx-store", os.MFD_CLOEXEC)
        os.fchmod(memory, 0o600)
        _files.append((os.getpid(), memory))
        return memory


@contextlib.contextmanager
def _claim_port() -> Iterator[int]:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as claim:
        try:
            claim.bind((HOST, 0))
        except OSError:
            yield 0
            return
        # From now on a rank may bind it too, as servers do, but the kernel does not assign it to other programs.
        claim.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        yield claim.getsockname()[1]
