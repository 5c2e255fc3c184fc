"""The start of an attempt of a job on several hosts, as each host is told of it."""

from __future__ import annotations

from dataclasses import dataclass

from phalanx.launch.hosts.cards import JobHosts


@dataclass(frozen=True)
class JobStart:
    """What the server has told this host about an attempt.

    Attributes:
        hosts: All hosts.
        attempt: The number of the attempt.
        place: Where ranks reach the server, as host:port.
        token: The secret that ranks need for that.
    """

    hosts: JobHosts
    attempt: int
    place: str
    token: str

    @property
    def master(self) -> tuple[str, int]:
        """The address and the port for MASTER_ADDR and MASTER_PORT."""
        return self.hosts.cards[0].address, self.hosts.cards[0].port
