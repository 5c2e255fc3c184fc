"""What the user asks for when a job runs on several hosts."""

from __future__ import annotations

from dataclasses import dataclass

from phalanx.launch.hosts.addresses import Endpoint

DEFAULT_TIMEOUT_S = 600.0


@dataclass(frozen=True)
class HostsPlan:
    """Where the hosts of a job meet, and what this host says about itself.

    Attributes:
        endpoint: Where they meet.
        num_hosts: How many there are.
        number: The number of this host; None if it may get any.
        job_id: The name of the job.
        token: The secret of the job, or "".
        own_address: The address that others reach this host at; "" to find it out.
        timeout_s: How long to wait for all hosts.
        backend: Who finds the host that the others meet at: phalanx, or a rendezvous backend of torch.
        options: The command that starts the job here, up to the program.
        program: The program and its arguments.
    """

    endpoint: Endpoint
    num_hosts: int
    number: int | None
    job_id: str
    token: str
    own_address: str = ""
    timeout_s: float = DEFAULT_TIMEOUT_S
    backend: str = "phalanx"
    options: tuple[str, ...] = ()
    program: tuple[str, ...] = ()
