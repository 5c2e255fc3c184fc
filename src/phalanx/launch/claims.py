"""Addresses that only one process of a user can hold at a time, so that only this process does something.

The holder listens, but lets nobody in. So the others can ask the kernel whether it belongs to their own user.
"""

from __future__ import annotations

import errno
import socket
import time
from pathlib import Path

from phalanx.errors import UsageError
from phalanx.launch.meeting import is_same_user

_RETRY_S = 0.02
_BETWEEN_CHECKS_S = 1.0
_PATIENCE_S = 5.0  # a holder listens a moment after it has taken the address
_ROOM = 4096


def claim_address(claim: socket.socket, address: bytes) -> bool:
    """Take an address; return whether nobody else holds it."""
    try:
        claim.bind(address)
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        return False
    claim.listen(_ROOM)
    return True


def wait_for_address(claim: socket.socket, address: bytes, what: str) -> None:
    """Wait until no other process of this user holds an address, and take it.

    Raises:
        UsageError: Another user holds it.
    """
    check_at = time.monotonic()
    while not claim_address(claim, address):
        if time.monotonic() >= check_at:
            check_holder(address, what)
            check_at = time.monotonic() + _BETWEEN_CHECKS_S
        time.sleep(_RETRY_S)


def check_holder(address: bytes, what: str) -> None:
    """Check that the holder of an address, if there is one, belongs to this user.

    Raises:
        UsageError: It belongs to another user, or does not listen.
    """
    deadline = time.monotonic() + _PATIENCE_S
    while time.monotonic() < deadline and _is_held(address):
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as probe:
            probe.setblocking(False)
            try:
                probe.connect(address)
                if is_same_user(probe):
                    return
                break
            except OSError as error:  # it does not listen yet, has ended, or very many have asked before
                if error.errno not in (errno.ECONNREFUSED, errno.EAGAIN):
                    raise
        time.sleep(_RETRY_S)
    if _is_held(address):
        raise UsageError(
            f"{what}: another user holds the name by which the ranks decide whose turn it is\n"
            "  do       start the job again; if that does not help, tell the administrator of this machine"
        )


def _is_held(address: bytes) -> bool:
    return f" @{address[1:].decode()}\n" in Path("/proc/net/unix").read_text(errors="replace")
