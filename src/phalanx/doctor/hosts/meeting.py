"""The meeting of the hosts that are examined: one of them, the guide, listens at the endpoint; the others visit it."""

from __future__ import annotations

import contextlib
import select
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NoReturn

from phalanx.doctor.hosts.conversation import Conversation
from phalanx.doctor.hosts.facts import HostFacts
from phalanx.doctor.hosts.paths import Path, measure_path
from phalanx.errors import UsageError
from phalanx.launch.hosts.addresses import Endpoint, find_own_address, listen_at
from phalanx.launch.hosts.link import LinkError

_PROVE_S = 5.0
_CONNECT_S = 3.0
_AGAIN_S = 0.3
_REMIND_S = 5.0
_MEASURE_S = 60.0  # for all paths of one host
_SAME_TOKEN = "Give all hosts the same token: PHALANX_JOB_TOKEN, or --token-file."

Say = Callable[[str], None]


class MeetingProblem(Exception):
    """The hosts don't meet. The text says what this host sees of it.

    Attributes:
        advice: What to do.
    """

    def __init__(self, text: str, advice: str) -> None:
        super().__init__(text)
        self.advice = advice


@dataclass
class Meeting:
    """The hosts that have met.

    Attributes:
        hosts: The facts about each, the guide's first.
        number: The number of this host.
        links: To all others, by their numbers, if this is the guide; otherwise to the guide.
    """

    hosts: list[HostFacts]
    number: int
    links: dict[int, Conversation]

    def measure_in_turn(self) -> list[list[Path]]:
        """Let one host after the other measure its paths to all others. All hosts return the same rows.

        Returns:
            For each host its paths to all hosts; that to itself is empty.

        Raises:
            MeetingProblem: A host has gone.
        """
        try:
            return self._guide() if self.number == 0 else self._follow()
        except (OSError, LinkError, UsageError) as error:
            text = f"a host went away, or lost its connection, while all were measuring: {error}"
            raise MeetingProblem(text, "Start the doctor again on all hosts.") from None

    def _guide(self) -> list[list[Path]]:
        rows = [self._measure()]
        for number in range(1, len(self.hosts)):
            self.links[number].send({"kind": "measure"})
            answer = self.links[number].receive(_MEASURE_S)
            rows.append([Path.from_json(value) for value in _list_of(answer.get("paths"))])
        for link in self.links.values():
            link.send({"kind": "measured", "rows": [[path.to_json() for path in row] for row in rows]})
        return rows

    def _follow(self) -> list[list[Path]]:
        link = self.links[0]
        while True:
            message = link.receive(_MEASURE_S * len(self.hosts))
            if message.get("kind") == "measured":
                return [[Path.from_json(value) for value in _list_of(row)] for row in _list_of(message.get("rows"))]
            link.send({"kind": "paths", "paths": [path.to_json() for path in self._measure()]})

    def _measure(self) -> list[Path]:
        return [Path() if number == self.number else measure_path(host) for number, host in enumerate(self.hosts)]


@contextlib.contextmanager
def meet(
    endpoint: Endpoint, num_hosts: int, token: str, own: HostFacts, own_address: str, timeout_s: float, say: Say
) -> Iterator[Meeting]:
    """Wait for all hosts.

    Args:
        endpoint: Where to meet.
        num_hosts: How many hosts there are.
        token: The job's secret.
        own: The facts about this host.
        own_address: The address that the user has given for this host, or "".
        timeout_s: How long to wait.
        say: Told now and then who is missing.

    Raises:
        MeetingProblem: They don't meet.
    """
    with contextlib.ExitStack() as stack:
        listener = listen_at(endpoint, own_address)
        if listener is not None:
            stack.enter_context(listener)
            guide = _Guide(listener, endpoint, num_hosts, token, own)
            stack.callback(guide.close)
            yield guide.gather(timeout_s, say)
        else:
            meeting = _visit(endpoint, num_hosts, token, own, timeout_s, say)
            stack.callback(meeting.links[0].close)
            yield meeting


class _Guide:
    def __init__(self, listener: socket.socket, endpoint: Endpoint, num_hosts: int, token: str, own: HostFacts) -> None:
        self._listener, self._endpoint, self._num_hosts, self._token = listener, endpoint, num_hosts, token
        self._guests: list[tuple[HostFacts, Conversation]] = []
        self._own = own
        self._strangers = list[str]()

    def close(self) -> None:
        for _, link in self._guests:
            link.close()

    def gather(self, timeout_s: float, say: Say) -> Meeting:
        deadline, remind_at = time.monotonic() + timeout_s, 0.0
        while len(self._guests) < self._num_hosts - 1:
            if time.monotonic() > deadline:
                self._give_up(timeout_s)
            if time.monotonic() > remind_at:
                say(self._who_is_missing())
                remind_at = time.monotonic() + _REMIND_S
            if select.select([self._listener], [], [], _AGAIN_S)[0]:
                self._admit()
            self._guests = [guest for guest in self._guests if not guest[1].is_gone()]
        hosts = [self._own, *(facts for facts, _ in self._guests)]
        for number, (_, link) in enumerate(self._guests, 1):
            link.send({"kind": "met", "number": number, "hosts": [host.to_json() for host in hosts]})
        return Meeting(hosts, 0, {number: link for number, (_, link) in enumerate(self._guests, 1)})

    def _admit(self) -> None:
        connection, address = self._listener.accept()
        try:
            link = Conversation(connection, self._token, is_server=True, timeout_s=_PROVE_S)
            self._guests.append((_facts_in(link.receive(_PROVE_S)), link))
        except LinkError as error:
            what = "with another token" if error.kind == "token" else "that is not phalanx's"
            self._strangers.append(f"a program at {address[0]} {what}")
        except (OSError, UsageError) as error:
            self._strangers.append(f"a program at {address[0]}, which then was silent ({error})")

    def _who_is_missing(self) -> str:
        here = ", ".join(facts.name for facts in (self._own, *(facts for facts, _ in self._guests)))
        came = f"; also came: {self._strangers[-1]}" if self._strangers else ""
        return (
            f"waiting for {self._num_hosts - 1 - len(self._guests)} of {self._num_hosts} hosts; here: {here}{came}. "
            f"On the others: phalanx doctor --hosts --nnodes {self._num_hosts} --rdzv-endpoint {self._endpoint}"
        )

    def _give_up(self, timeout_s: float) -> NoReturn:
        if self._strangers:
            text = f"{self._strangers[-1]} came here"
            advice = _SAME_TOKEN if "token" in text else "Choose another port for the endpoint."
        else:
            text = f"nobody else came within {timeout_s:g} s" if not self._guests else self._who_is_missing()
            advice = (
                "Start the doctor on all hosts with the same --rdzv-endpoint. If it runs there and can't connect, let "
                f"the hosts connect to port {self._endpoint.port} of {self._own.address}: a firewall may be in between."
            )
        raise MeetingProblem(text, advice)


def _visit(endpoint: Endpoint, num_hosts: int, token: str, own: HostFacts, timeout_s: float, say: Say) -> Meeting:
    link = _connect(endpoint, token, own, timeout_s, say)
    try:
        link.send({"kind": "doctor", "facts": own.to_json(), "num_hosts": num_hosts})
        say(f"connected to {endpoint}; waiting for the other hosts")
        met = link.receive(timeout_s)
        hosts = [HostFacts.from_json(value) for value in _list_of(met.get("hosts"))]
        return Meeting(hosts, int(met.get("number", 0)), {0: link})
    except (OSError, LinkError, UsageError) as error:
        link.close()
        text = f"{endpoint} was reached, but not all hosts came: {error}"
        raise MeetingProblem(text, "Start the doctor on all hosts, with the same --nnodes.") from None


def _connect(endpoint: Endpoint, token: str, own: HostFacts, timeout_s: float, say: Say) -> Conversation:
    deadline, remind_at = time.monotonic() + timeout_s, time.monotonic() + 2 * _AGAIN_S
    while True:
        try:
            connection = socket.create_connection(endpoint, min(_CONNECT_S, timeout_s))
            return Conversation(connection, token, is_server=False, timeout_s=_PROVE_S)
        except LinkError as error:
            raise _stranger(endpoint, error) from None
        except OSError as error:
            if time.monotonic() > deadline:
                raise _no_connection(endpoint, own, error, timeout_s) from None
            if time.monotonic() > remind_at:
                reason = (error.strerror or str(error)).lower()
                say(
                    f"{endpoint} can't be reached yet ({reason}); is phalanx doctor --hosts running on {endpoint.host}?"
                )
                remind_at = time.monotonic() + _REMIND_S
            time.sleep(_AGAIN_S)


def _stranger(endpoint: Endpoint, error: LinkError) -> MeetingProblem:
    if error.kind == "token":
        return MeetingProblem(f"the host at {endpoint} has another token", _SAME_TOKEN)
    if error.kind == "version":
        text = f"the host at {endpoint} has a version of phalanx that speaks another protocol"
        return MeetingProblem(text, "Install the same version of phalanx on all hosts.")
    text = f"a program that is not phalanx listens at {endpoint}"
    return MeetingProblem(text, "Choose another port for the endpoint, or end that program.")


def _no_connection(endpoint: Endpoint, own: HostFacts, error: OSError, timeout_s: float) -> MeetingProblem:
    """Say what the last error means: a host that refuses is there, and one that is silent may not be."""
    if isinstance(error, ConnectionRefusedError):
        if find_own_address(endpoint) == own.address and _is_of_this_host(endpoint, own):
            return MeetingProblem(
                f"port {endpoint.port} of this host is taken by a program that does not listen at {own.address}",
                "Choose another port for the endpoint.",
            )
        return MeetingProblem(
            f"{endpoint.host} answers, but nothing listens at port {endpoint.port} there after {timeout_s:g} s",
            f"Start phalanx doctor --hosts on {endpoint.host} too. If it runs there, a firewall refuses connections, "
            f"or {endpoint.host} is another machine for {own.name} than you think.",
        )
    reason = "no answer" if isinstance(error, TimeoutError) else (error.strerror or str(error)).lower()
    return MeetingProblem(
        f"{endpoint} can't be reached from {own.title}: {reason}",
        f"Check that {endpoint.host} is up, that there is a route to it (ip route get ADDRESS), and that no firewall "
        f"drops packets to port {endpoint.port}.",
    )


def _is_of_this_host(endpoint: Endpoint, own: HostFacts) -> bool:
    return endpoint.host in (own.name, own.address)


def _facts_in(message: dict[str, object]) -> HostFacts:
    if message.get("kind") != "doctor":
        raise UsageError("phalanx run is running there, not phalanx doctor")
    return HostFacts.from_json(message.get("facts"))


def _list_of(value: object) -> list[object]:
    if not isinstance(value, list):
        raise UsageError("the other host has not sent a list, as expected")
    return value
