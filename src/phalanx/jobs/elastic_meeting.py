"""Let a rendezvous of torch.distributed.elastic decide which host is host 0, in a process that imports torch.

Host 0 chooses the place of the rendezvous server and writes it, signed, into the store of torch's rendezvous; the other
hosts read it there. Everything else happens at that server. This process lives as long as the launcher wants, because
it may keep torch's store.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from phalanx.jobs.no_job import NoJobError
from phalanx.launch.board import Seal, StoreBoard
from phalanx.launch.hosts.addresses import Endpoint, claim_port, find_own_address, listen_at, parse_endpoint
from phalanx.launch.hosts.json_lines import JsonLines
from phalanx.launch.hosts.plan import HostsPlan
from phalanx.settings import copy_environment

_PROGRAM = (
    "import sys; sys.path[:1] = filter(None, sys.path[:1]); from phalanx.jobs.elastic_meeting import main; "
    "main(int(sys.argv[1]))"
)
_KEY = "rendezvous server"
_END_S = 2.0


@dataclass(frozen=True)
class ElasticTask:
    """What that process has to do: the fields of a HostsPlan that it needs."""

    backend: str
    place: str
    num_hosts: int
    number: int | None
    job_id: str
    token: str
    own_address: str
    timeout_s: float


@contextlib.contextmanager
def meet_elastically(plan: HostsPlan, inbox: int) -> Iterator[HostsPlan]:
    """Ask torch's rendezvous for this host's number and the server's place; yield a plan with them.

    Args:
        plan: What the user asks for.
        inbox: A descriptor that can be read when a signal has come.

    Raises:
        NoJobError: The rendezvous failed, or a signal came.
        OSError: The process could not be started.
    """
    ours, theirs = socket.socketpair()
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            env=copy_environment(),
            stdin=subprocess.DEVNULL,
            process_group=0,
        )
    lines = JsonLines(ours)
    try:
        task = ElasticTask(
            plan.backend,
            str(plan.endpoint),
            plan.num_hosts,
            plan.number,
            plan.job_id,
            plan.token,
            plan.own_address,
            plan.timeout_s,
        )
        lines.send(task.__dict__)
        found = _await_answer(lines, inbox)
        if "why" in found:
            raise NoJobError(f"--rdzv-backend {plan.backend}: {found['why']}")
        yield replace(plan, endpoint=parse_endpoint(found["place"]), number=found["number"])
    finally:
        lines.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_END_S)
        process.kill()
        process.wait()


def _await_answer(lines: JsonLines, inbox: int) -> dict[str, Any]:
    poll = select.poll()
    poll.register(lines.fileno(), select.POLLIN)
    poll.register(inbox, select.POLLIN)
    while True:
        for descriptor, _ in poll.poll():
            if descriptor == inbox:
                raise NoJobError("ended by a signal while it waited for other hosts", exit_code=128 + signal.SIGINT)
            try:
                for message in lines.read():
                    return message
            except EOFError:
                return {"why": "the process that asks torch's rendezvous has died"}


def main(descriptor: int) -> None:
    """Be that process: meet the other hosts, answer, and stay until the launcher closes its end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    lines = JsonLines(socket.socket(fileno=descriptor))
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    messages: list[dict[str, Any]] = []
    with contextlib.suppress(EOFError):
        while not messages:
            poll.poll()
            messages = lines.read()
        task = ElasticTask(**messages[0])
        kept: list[Any] = []
        try:
            lines.send(_meet(task, kept))
        except Exception as error:  # torch's rendezvous raises many kinds
            first = str(error).strip().partition("\n")[0]
            lines.send({"why": f"{type(error).__name__}: {first}"})
        while True:
            poll.poll()
            lines.read()
    os._exit(0)  # a TCPStore whose server has gone may not let this process end


def _meet(task: ElasticTask, kept: list[Any]) -> dict[str, Any]:
    from torch.distributed.elastic.rendezvous import RendezvousParameters, registry

    endpoint = parse_endpoint(task.place)
    settings: dict[str, Any] = {"timeout": int(task.timeout_s), "join_timeout": int(task.timeout_s)}
    if task.backend == "static":
        settings["rank"] = task.number
    elif task.backend == "c10d":
        # Otherwise torch guesses by host names, and may guess wrong (pytorch #73656).
        listener = listen_at(endpoint, task.own_address, is_told=task.number == 0)
        settings["is_host"] = listener is not None
        if listener is not None:
            listener.close()
    parameters = RendezvousParameters(
        task.backend,
        str(endpoint),
        task.job_id,
        task.num_hosts,
        task.num_hosts,
        local_addr=task.own_address or None,
        **settings,
    )
    handler = registry.get_rendezvous_handler(parameters)
    found = handler.next_rendezvous()
    board = StoreBoard(found.store, Seal(task.token, task.job_id))
    kept += [handler, found.store]
    if found.rank == 0:
        address = task.own_address or find_own_address(endpoint)
        claim = claim_port(address)
        kept.append(claim)
        board.set(_KEY, str(Endpoint(address, claim.getsockname()[1])))
    return {"place": board.get(_KEY, task.timeout_s), "number": found.rank}
