"""A port for MASTER_PORT that no other world of this machine has.

Below the range from which the kernel gives out ports by itself, and claimed by name while in use: worlds that run at
the same time, in whatever process, never get the same one. It is opened by ranks that make a store of torch's, and by
nobody else.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator

_FIRST, _COUNT = 20_000, 12_000
_STEP = 7919  # a prime: neighbours start far from each other
_ATTEMPTS = 200


@contextlib.contextmanager
def claim_port() -> Iterator[int]:
    """Hold a port that is free; 0 where none is, such as in a container that has no network at all."""
    for attempt in range(_ATTEMPTS):
        port = _FIRST + (os.getpid() * _STEP + attempt) % _COUNT
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as claim:
            try:
                claim.bind(f"\0phalanx-port-{port}")
            except OSError:
                continue
            if _is_free(port):
                yield port
                return
    yield 0


def _is_free(port: int) -> bool:
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(("127.0.0.1", port))
    except OSError:
        return False
    return True
