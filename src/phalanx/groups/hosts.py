"""Which ranks share a host.

Ranks share a host if they can share memory and see each other's processes. This is tried out: host names, addresses
and variables such as LOCAL_WORLD_SIZE can all be wrong. Groups that are split from another one select their members
from its table.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from phalanx.errors import UsageError
from phalanx.groups.roll_call import RollCall

if TYPE_CHECKING:
    from phalanx.launch.board import Board

_CREDENTIALS = struct.Struct("3i")  # struct ucred: pid, uid, gid


@dataclass(frozen=True)
class HostTable:
    """The ranks of each host.

    Attributes:
        hosts: For each host its ranks in ascending order. The hosts come in the order of their lowest ranks.
    """

    hosts: tuple[tuple[int, ...], ...]

    def __post_init__(self) -> None:
        ranks = sorted(rank for host in self.hosts for rank in host)
        firsts = [host[0] for host in self.hosts if host]
        if ranks != list(range(len(ranks))) or len(firsts) < len(self.hosts) or firsts != sorted(firsts):
            raise UsageError(f"a table of hosts needs each rank once, hosts in the order of their ranks: {self.hosts}")
        if any(list(host) != sorted(host) for host in self.hosts):
            raise UsageError(f"the ranks of each host must be in ascending order: {self.hosts}")

    @property
    def size(self) -> int:
        """The number of ranks."""
        return sum(map(len, self.hosts))

    def host_of(self, rank: int) -> int:
        """Return the number of a rank's host."""
        return next(host for host, ranks in enumerate(self.hosts) if rank in ranks)

    def select(self, members: Sequence[int]) -> HostTable:
        """Return the table of a group of some of the ranks, which are numbered in the order given."""
        numbers = {rank: number for number, rank in enumerate(members)}
        hosts = (tuple(sorted(numbers[rank] for rank in host if rank in numbers)) for host in self.hosts)
        return HostTable(tuple(sorted(host for host in hosts if host)))

    def to_json(self) -> list[list[int]]:
        """Return what json can write."""
        return [list(host) for host in self.hosts]

    @staticmethod
    def from_json(value: Any) -> HostTable:
        """Read what to_json() returned.

        Raises:
            UsageError: The value is no such table.
        """
        if not isinstance(value, list) or not all(isinstance(host, list) for host in value):
            raise UsageError(f"this is no table of hosts: {value!r}")
        if not all(type(rank) is int for host in value for rank in host):
            raise UsageError(f"this is no table of hosts: {value!r}")
        return HostTable(tuple(tuple(host) for host in value))


def find_hosts(
    board: Board, rank: int, size: int, timeout_s: float, *, title: str = "the group of all ranks"
) -> HostTable:
    """Find out which ranks share a host. Every rank must call it, and all get the same table.

    Each rank listens at an address that nobody can guess before it puts it on the board. So a refused connection is an
    answer, and nobody waits for a timeout. A rank tries the ranks below it in order and takes the first that answers.

    Args:
        board: What all ranks can read and write; the keys must be new.
        rank: The number of this rank.
        size: The number of ranks.
        timeout_s: How long to wait for the other ranks.
        title: What errors call the group.

    Raises:
        OperationTimeoutError: A rank did not come in time.
    """
    address = secrets.token_hex(16)
    with _listening(address, size):
        board.set(f"host/card/{rank}", f"{_surroundings()}|{address}")
        texts = RollCall(title).read(board, {r: f"host/card/{r}" for r in range(size)}, timeout_s)
        cards = [texts[r].rpartition("|") for r in range(size)]
        # To look at the surroundings first saves attempts. It also makes the relation symmetric: a process outside a
        # container may see those inside, which don't see it.
        near = [r for r in range(rank) if cards[r][0] == cards[rank][0]]
        first = next((r for r in near if _answers(cards[r][2])), rank)
        board.set(f"host/first/{rank}", str(first))
        # All keep listening until all have tried.
        firsts = [int(text) for text in board.get_many([f"host/first/{r}" for r in range(size)], timeout_s)]
    return HostTable(tuple(tuple(r for r in range(size) if firsts[r] == host) for host in sorted(set(firsts))))


@contextlib.contextmanager
def _listening(address: str, size: int) -> Iterator[None]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(_socket_name(address))
        listener.listen(size)
        yield


def _socket_name(address: str) -> bytes:
    return f"\0phalanx-here-{address}".encode()


def _surroundings() -> str:
    """Describe what ranks of one host have in common. Clones of a virtual machine may have it in common too."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    namespaces = [str(os.stat(f"/proc/self/ns/{kind}").st_ino) for kind in ("net", "pid")]
    return ":".join([boot, *namespaces, str(os.getuid())])


def _answers(address: str) -> bool:
    """Tell whether a process of this user listens there, one that this process can see."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        try:
            connection.connect(_socket_name(address))
        except OSError:
            return False
        credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        pid, uid, _ = _CREDENTIALS.unpack(credentials)
        return bool(uid == os.getuid() and pid != 0)  # 0: in a process namespace that this process does not see


class PrefixedBoard:
    """A part of a board. See phalanx.launch.board.Board."""

    def __init__(self, board: Board, prefix: str) -> None:
        self._board = board
        self._prefix = prefix

    def set(self, key: str, text: str) -> None:
        """Write a text."""
        self._board.set(self._prefix + key, text)

    def get(self, key: str, timeout_s: float) -> str:
        """Wait for a text, and return it."""
        return self._board.get(self._prefix + key, timeout_s)

    def get_many(self, keys: Sequence[str], timeout_s: float) -> list[str]:
        """Wait for texts, and return them."""
        return self._board.get_many([self._prefix + key for key in keys], timeout_s)

    def add(self, key: str, amount: int = 1) -> int:
        """Add to a counter."""
        return self._board.add(self._prefix + key, amount)
