"""What a rank of a job on several hosts asks its rendezvous server for: the board, and what other hosts know."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from phalanx.diagnosis import Scene, explain
from phalanx.diagnosis.formatting import ELSEWHERE
from phalanx.engine import GroupSegment
from phalanx.engine.facts import Trouble
from phalanx.errors import PhalanxError
from phalanx.launch.board import nobody_wrote
from phalanx.launch.context import current_context
from phalanx.launch.hosts.addresses import Endpoint, parse_endpoint
from phalanx.launch.hosts.client import ServerClient
from phalanx.settings import job_attempt, job_desk, job_token, read_placement

_KEPT_AS = "rendezvous server"
# The server that the watchers of this job meet at, if torchrun, mpiexec or srun has started its ranks.
_watching: list[ServerClient] = []


class ServerBoard:
    """The board of a job that `phalanx run` has started on several hosts. The connection is authenticated.

    Args:
        client: The connection to the server.
        prefix: What the keys begin with there, such as the number of the attempt.
    """

    def __init__(self, client: ServerClient, prefix: str) -> None:
        self._client = client
        self._prefix = prefix

    def set(self, key: str, text: str) -> None:
        """Write a text."""
        self._client.request({"op": "set", "key": self._prefix + key, "value": text})

    def get(self, key: str, timeout_s: float) -> str:
        """Wait for a text, and return it.

        Raises:
            OperationTimeoutError: Nobody has written it in time.
        """
        return self.get_many([key], timeout_s)[0]

    def get_many(self, keys: Sequence[str], timeout_s: float) -> list[str]:
        """Wait for texts, and return them.

        Raises:
            OperationTimeoutError: One of them was not written in time.
        """
        found = self._client.get([self._prefix + key for key in keys], timeout_s)
        if found is None:
            missing = self._client.request({"op": "get", "keys": [self._prefix + key for key in keys]})
            names = [str(key).removeprefix(self._prefix) for key in missing.get("missing", keys)]
            raise nobody_wrote(names, timeout_s)
        return found

    def add(self, key: str, amount: int = 1) -> int:
        """Add to a counter, and return the sum."""
        return int(self._client.request({"op": "add", "key": self._prefix + key, "amount": amount})["total"])


def rendezvous_server() -> ServerClient | None:
    """Return this rank's connection to the rendezvous server; None if the job has one host or another launcher."""
    place = job_desk()
    if not place:
        return None
    context = current_context()
    if context is None:
        return ServerClient(parse_endpoint(place), job_token())
    if _KEPT_AS not in context.own:
        look = functools.partial(_look_at_world, GroupSegment.attach(context.descriptor, is_writable=False))
        context.own.setdefault(_KEPT_AS, ServerClient(parse_endpoint(place), job_token(), look))
    client: ServerClient = context.own[_KEPT_AS]
    return client


def _look_at_world(world: GroupSegment) -> None:
    """Raise what the launcher says of another host, so that a rank does not wait for what a lost host should write.

    Raises:
        PhalanxError: Something has happened on another host.
    """
    fault, placement = world.fault(), read_placement()
    if fault is not None and fault.text.startswith(ELSEWHERE) and placement is not None:
        facts = Trouble("peer_failed", "connect", culprit=-1, reporter=-1, text=fault.text, is_fatal=True)
        raise explain(facts, Scene("world", placement.rank, placement.size))


def job_board() -> ServerBoard | None:
    """Return the board of this rank's job; None if the job has one host or another launcher."""
    client = rendezvous_server()
    return None if client is None else ServerBoard(client, f"{job_attempt()}/board/")


def set_watching_server(place: Endpoint, token: str) -> None:
    """Note where the watchers of this job have met."""
    _watching[:] = [ServerClient(place, token)]


def ask_hosts(what: dict[str, object], timeout_s: float) -> list[tuple[int, object]]:
    """Ask the launchers or watchers of all hosts something; return number and answer of each host that answers in time.

    It raises nothing, because its caller has a worse error to report.
    """
    client = rendezvous_server() or next(iter(_watching), None)
    if client is None:
        return []
    try:
        answers = client.request({"kind": "ask", "what": what}, timeout_s)["answers"]
        return sorted((int(host), value) for host, value in answers.items() if value is not None)
    except (PhalanxError, ValueError, AttributeError, KeyError):
        return []
