"""The agent of a host: a child process of the launcher that does all of a job that needs the network.

It meets the other hosts, sends beats, and passes on what the server and the launcher say. The launcher never waits for
the network, and beats go on while the launcher is busy. The agent ends when the launcher does.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import sys
import time
from dataclasses import dataclass, replace
from typing import Any

from phalanx.errors import UsageError
from phalanx.launch.hosts.addresses import Endpoint, claim_port, find_own_address, listen_at
from phalanx.launch.hosts.blame import BEAT_S, SILENCE_S, AwakeClock, describe_lost_launcher, describe_silence
from phalanx.launch.hosts.cards import HostCard, JobHosts
from phalanx.launch.hosts.json_lines import JsonLines
from phalanx.launch.hosts.link import LinkError, Message
from phalanx.launch.hosts.server import RendezvousServer
from phalanx.launch.hosts.stream import LinkStream
from phalanx.launch.hosts.waiting_words import Command, describe_missing, describe_no_server

_CONNECT_S = 1.0
_BETWEEN_ATTEMPTS_S = 0.25
_FIRST_WORDS_S = 2.0
_BETWEEN_WORDS_S = 5.0
_FAREWELL_S = 3.0  # for the other hosts to leave the server
_PRIORITY = -10
_WAKEUP_S = 0.05  # while something waits to be sent


@dataclass(frozen=True)
class AgentTask:
    """What the launcher tells its agent.

    Attributes:
        endpoint: Where the hosts meet.
        token: The job's secret, or "".
        card: The card of this host; its address and port are still missing.
        own_address: The address that others reach this host at; "" to find it out.
        timeout_s: How long to wait for all hosts.
        options: The command that starts the job here, up to the program; () if people do not type one on each host.
        program: The program and its arguments.
    """

    endpoint: Endpoint
    token: str
    card: HostCard
    own_address: str
    timeout_s: float
    options: tuple[str, ...]
    program: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Return what json can write."""
        return {**self.__dict__, "endpoint": list(self.endpoint), "card": self.card.to_json()}

    @staticmethod
    def from_json(value: dict[str, Any]) -> AgentTask:
        """Read what to_json() returned."""
        kept = {name: value[name] for name in ("token", "own_address", "timeout_s")}
        card, endpoint = HostCard.from_json(value["card"]), Endpoint(*value["endpoint"])
        return AgentTask(
            endpoint=endpoint, card=card, options=tuple(value["options"]), program=tuple(value["program"]), **kept
        )


class _GiveUpError(Exception):
    """There will be no job for this host; the text says why."""


class Agent:
    """The agent's state and its loop.

    Args:
        launcher: The connection to the launcher.
        task: What the launcher wants.

    Raises:
        UsageError: The endpoint's name is unknown, or this host does not have the address that it should have.
    """

    def __init__(self, launcher: JsonLines, task: AgentTask) -> None:
        self._launcher = launcher
        listener = listen_at(task.endpoint, task.own_address, is_told=task.card.number == 0)
        self._place = task.endpoint
        address = task.own_address
        if listener is not None:
            self._place = Endpoint(*listener.getsockname()[:2])
            address = address or self._place.host
        address = address or find_own_address(task.endpoint)
        try:
            self._claim = claim_port(address)
        except OSError as error:
            raise UsageError(f"this host does not have the address {address}: {error.strerror}") from None
        card = replace(task.card, address=address, port=self._claim.getsockname()[1])
        self._task = replace(task, card=card)
        self._server = None if listener is None else RendezvousServer(listener, card, task.token)
        self._stream: LinkStream | None = None
        self._has_joined = False
        self._why_not = "no answer"
        self._clock = AwakeClock()
        began = time.monotonic()
        self._deadline, self._words_at = began + task.timeout_s, began + _FIRST_WORDS_S
        self._try_at = self._beat_at = self._heard_at = 0.0
        self._waiting: list[HostCard] = []
        self._job: JobHosts | None = None
        self._server_number = 0
        self._attempt = -1
        self._is_settled = False  # the attempt is over, or there is a verdict
        self._is_leaving = False

    def run(self) -> None:
        """Do everything until the launcher has enough of it."""
        try:
            while not self._is_leaving:
                self._turn(self._clock.tick())
        except _GiveUpError as error:
            self._launcher.send({"kind": "refused", "why": str(error)})
        self._say_farewell()

    def _turn(self, now: float) -> None:
        if self._stream is None and now >= self._try_at:
            self._connect(now)
        if self._job is None:
            self._wait_for_others()
        if now >= self._beat_at and self._has_joined:
            self._beat_at = now + BEAT_S
            self._send({"kind": "beat"})
        ready = self._await_news()
        if self._launcher.fileno() in ready:
            self._hear_launcher()
        if self._server is not None:
            self._server.step(ready)
        if self._stream is not None and self._stream.fileno() in ready:
            self._hear_server()
        self._judge_server(self._clock.tick())
        for stream in (self._launcher, self._stream):
            if stream is not None and stream.is_waiting:
                with contextlib.suppress(OSError):
                    stream.flush()

    def _await_news(self) -> set[int]:
        poll = select.poll()
        reading = [self._launcher.fileno(), *([] if self._stream is None else [self._stream.fileno()])]
        is_waiting = self._launcher.is_waiting or (self._stream is not None and self._stream.is_waiting)
        if self._server is not None:
            reading += self._server.filenos()
            is_waiting = is_waiting or bool(self._server.writing_filenos())
        for descriptor in reading:
            poll.register(descriptor, select.POLLIN)
        patience_s = _WAKEUP_S if is_waiting or (self._server is not None and self._server.is_busy()) else BEAT_S
        return {descriptor for descriptor, _ in poll.poll(patience_s * 1000)}

    # The server.

    def _connect(self, now: float) -> None:
        self._try_at = now + _BETWEEN_ATTEMPTS_S
        try:
            connection = socket.create_connection(self._place, timeout=_CONNECT_S)
        except OSError as error:
            self._why_not = error.strerror or str(error)
            return
        self._stream = LinkStream(connection, self._task.token, is_server=False)
        self._heard_at = now

    def _hear_server(self) -> None:
        assert self._stream is not None
        try:
            messages = self._stream.read()
        except LinkError as error:
            self._refuse_server(error)
            return
        except (OSError, EOFError) as error:
            self._lose_server(error)
            return
        if self._stream.is_open and not self._has_joined:
            self._has_joined = True
            self._send({"kind": "host", "card": self._task.card.to_json()})
        self._heard_at = self._clock.tick()
        for message in messages:
            self._obey(message)

    def _obey(self, message: Message) -> None:
        kind = message.get("kind")
        if kind == "waiting":
            self._waiting = [HostCard.from_json(card) for card in message["cards"]]
        elif kind == "start":
            cards = tuple(HostCard.from_json(card) for card in message["cards"])
            self._job = JobHosts(cards, message["number"])
            self._server_number, self._attempt, self._is_settled = message["server"], message["attempt"], False
            token = message["token"] or self._task.token
            self._launcher.send({**message, "token": token, "place": str(self._place)})
        elif kind in ("verdict", "over") and message["attempt"] == self._attempt and not self._is_settled:
            self._is_settled = True
            self._launcher.send(message)
        elif kind == "refused":
            raise _GiveUpError(message["why"])
        elif kind in ("say", "asked", "lost"):
            self._launcher.send(message)

    def _refuse_server(self, error: LinkError) -> None:
        place = self._task.endpoint
        why = {
            "token": f"the job at {place} has another token than this host, or only one of them has a token; "
            "give all hosts the same PHALANX_JOB_TOKEN or --token-file",
            "version": f"another version of phalanx runs at {place}; install the same version on all hosts",
        }.get(error.kind, f"something at {place} answers that is not phalanx; give the job another port")
        raise _GiveUpError(why) from None

    def _lose_server(self, error: Exception) -> None:
        assert self._stream is not None
        self._stream.close()
        self._stream, self._has_joined = None, False
        self._why_not = getattr(error, "strerror", None) or "it has closed the connection"
        if self._job is not None:
            self._try_at = float("inf")
            self._settle(describe_lost_launcher(self._job.cards, self._server_number).to_json())

    def _judge_server(self, now: float) -> None:
        if self._stream is None or now - self._heard_at <= SILENCE_S:
            return
        if self._job is None:
            self._lose_server(TimeoutError(0, "no answer"))
            return
        is_alone = self._job.num_hosts == 2
        verdict = describe_silence(self._job.cards, [self._server_number], self._job.number, is_alone=is_alone)
        self._heard_at = float("inf")
        self._settle(verdict.to_json())

    def _settle(self, verdict: dict[str, Any]) -> None:
        """Give a verdict to the launcher when the server can't, and say that there will be no further attempt."""
        if not self._is_settled:
            self._is_settled = True
            self._launcher.send({"kind": "verdict", "attempt": self._attempt, "verdict": verdict})
        self._launcher.send({"kind": "lost", "text": verdict["text"]})

    def _send(self, message: Message) -> None:
        if self._stream is None or not self._stream.is_open:
            return
        try:
            self._stream.send(message)
        except OSError as error:
            self._lose_server(error)

    # The launcher.

    def _hear_launcher(self) -> None:
        try:
            messages = self._launcher.read()
        except EOFError:
            self._is_leaving = True  # it has died: the server says so when this agent leaves
            return
        for message in messages:
            if message["kind"] == "bye":
                self._is_leaving = True
            else:
                self._send(message)

    def _wait_for_others(self) -> None:
        now = time.monotonic()
        if now < self._words_at:
            return
        text = self._describe_wait()
        if now > self._deadline:
            if self._server is not None:
                self._server.give_up(f"{self._task.card.name} has waited {self._task.timeout_s:.3g} s for all hosts")
            raise _GiveUpError(f"not all hosts came within {self._task.timeout_s:.3g} s: {text}")
        self._words_at = min(self._deadline + 0.01, now + _BETWEEN_WORDS_S)
        if self._task.options:
            self._launcher.send({"kind": "say", "text": text})

    def _describe_wait(self) -> str:
        command = Command(self._task.options, self._task.program)
        if not self._has_joined:
            return describe_no_server(self._task.endpoint, self._why_not, command)
        return describe_missing(self._waiting, self._task.card.num_hosts, command)

    def _say_farewell(self) -> None:
        """Leave the job. If the server is here, let the other hosts hear its last words."""
        self._send({"kind": "leave"})
        deadline = time.monotonic() + _FAREWELL_S
        while time.monotonic() < deadline and (
            (self._server is not None and not self._server.is_idle())
            or (self._stream is not None and self._stream.is_waiting)
        ):
            ready = self._await_news() - {self._launcher.fileno()}
            if self._server is not None:
                self._server.step(ready)
            if self._stream is not None:
                with contextlib.suppress(OSError):
                    self._stream.flush()
        if self._server is not None:
            self._server.close()


def main(descriptor: int) -> None:
    """Be the agent of the launcher at the other end of a socket; return when it has ended."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the launcher decides
    with contextlib.suppress(OSError):  # most users may not do this; on a busy machine it keeps beats in time
        os.setpriority(os.PRIO_PROCESS, 0, _PRIORITY)
    launcher = JsonLines(socket.socket(fileno=descriptor))
    try:
        Agent(launcher, AgentTask.from_json(launcher.await_first())).run()
    except UsageError as error:
        launcher.send({"kind": "refused", "why": str(error)})
    except EOFError:
        pass
    sys.stdout.flush()
    os._exit(0)
