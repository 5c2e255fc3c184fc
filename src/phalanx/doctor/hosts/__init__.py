"""Find out whether several hosts can run a job together: `phalanx doctor --hosts`, typed on each of them.

One of the hosts listens at the endpoint, as in `phalanx run`. The others visit it. Each host says what it is, tries to
reach all others, and tells what it has found. In the end, all hosts print the same findings about all of them.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable

from phalanx.doctor.finding import Finding
from phalanx.doctor.hosts.comparison import compare_hosts, compare_paths
from phalanx.doctor.hosts.facts import gather_facts
from phalanx.doctor.hosts.meeting import Meeting, MeetingProblem, meet
from phalanx.doctor.hosts.names import look_up_endpoint, look_up_own_name
from phalanx.doctor.hosts.paths import PathServer
from phalanx.launch.hosts.addresses import Endpoint, find_own_address

__all__ = ["examine_hosts"]

_THIS = "This host"


def examine_hosts(
    endpoint: Endpoint,
    num_hosts: int,
    *,
    token: str = "",
    own_address: str = "",
    timeout_s: float = 300.0,
    say: Callable[[str], None] = lambda _: None,
) -> list[Finding]:
    """Meet the other hosts, and examine them and the network between them.

    Args:
        endpoint: Where the hosts meet.
        num_hosts: How many there are.
        token: The secret of the job, which all hosts must have.
        own_address: The address at which others reach this host, if the user has given it.
        timeout_s: How long to wait for the other hosts.
        say: Told what is going on, in a line.
    """
    name = socket.gethostname()
    lookup = look_up_endpoint(_THIS, endpoint, name)
    if lookup.status == "problem":
        return [lookup]
    address = own_address or find_own_address(endpoint)
    own = [lookup, look_up_own_name(_THIS, name, address)]
    with contextlib.ExitStack() as stack:
        try:
            paths = stack.enter_context(PathServer(address))
        except OSError as error:
            advice = "Give the address of one of this host's network interfaces with --local-addr, or leave it out."
            return [*own, Finding(_THIS, "own address", "problem", f"{address}: {error.strerror}", advice)]
        facts = gather_facts(name, address, paths.port, paths.word)
        try:
            meeting = stack.enter_context(meet(endpoint, num_hosts, token, facts, own_address, timeout_s, say))
        except MeetingProblem as problem:
            return [*own, Finding("Meeting", str(endpoint), "problem", str(problem), problem.advice)]
        return own + _examine_together(meeting, endpoint)


def _examine_together(meeting: Meeting, endpoint: Endpoint) -> list[Finding]:
    names = ", ".join(facts.title for facts in meeting.hosts)
    met = Finding("Meeting", str(endpoint), "ok", f"all {len(meeting.hosts)} hosts have come: {names}")
    try:
        measured = meeting.measure_in_turn()
    except MeetingProblem as problem:
        return [met, *compare_hosts(meeting.hosts), Finding("Network", "all", "problem", str(problem), problem.advice)]
    return [met, *compare_hosts(meeting.hosts), *compare_paths(meeting.hosts, measured)]
