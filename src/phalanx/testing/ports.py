"""A port for MASTER_PORT that no other test has.

Below the range from which the kernel gives out ports by itself, and claimed by name while in use: tests that run at the
same time, in whatever process, never get the same one.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterator

from phalanx.errors import UsageError

_FIRST, _COUNT = 20_000, 12_000
_STEP = 7919  # a prime: neighbours start far from each other
_ATTEMPTS = 200


@contextlib.contextmanager
def claim_port() -> Iterator[int]:
    """Hold a port that is free.

    Raises:
        UsageError: None was found.
    """
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
    raise UsageError(f"no free port among {_ATTEMPTS} from {_FIRST} on")


def _is_free(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True
