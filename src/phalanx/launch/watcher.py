"""The watcher of a host: it does for ranks of torchrun, mpiexec or srun what `phalanx run` does for its own ranks.

The first rank of a host starts it. It has an agent, as `phalanx run` has, so the hosts notice when one of them is
lost. It does not start or end ranks: it only tells them. It imports no torch, and ends when all ranks of its host have.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import time
from dataclasses import asdict, dataclass
from typing import Any

from phalanx.diagnosis.observer import Observer
from phalanx.diagnosis.views import JobView
from phalanx.engine import GroupSegment
from phalanx.engine.facts import RankFacts
from phalanx.launch.answers import answer_question
from phalanx.launch.hosts.addresses import Endpoint
from phalanx.launch.hosts.agent_client import AgentClient
from phalanx.launch.hosts.blame import AttemptVerdict
from phalanx.launch.hosts.cards import HostCard, JobHosts
from phalanx.launch.hosts.json_lines import JsonLines
from phalanx.launch.hosts.link import Message
from phalanx.launch.hosts.plan import HostsPlan
from phalanx.launch.loop import Loop
from phalanx.launch.rank import LocalProcess, Rank
from phalanx.launch.world_watch import WorldWatch

_ATTEMPT = 0
_BETWEEN_LOOKS_S = 1.0  # for groups that ranks have made, so that it is known how a rank leaves them
_VERDICT_S = 2.0  # for the verdict on the last rank of this host


@dataclass(frozen=True)
class WatchTask:
    """What a rank tells the watcher of its host.

    Attributes:
        place: Where the hosts meet, as host and port.
        number: The number of this host.
        num_hosts: How many there are.
        ranks: The ranks of this host.
        pids: Their processes.
        num_ranks: How many ranks all hosts have.
        job_id: The name of the job.
        token: Its secret.
        address: The address that others reach this host at.
        timeout_s: How long to wait for the other hosts.
        world: The nonce of the memory of the group of all ranks, in hexadecimal digits.
    """

    place: tuple[str, int]
    number: int
    num_hosts: int
    ranks: tuple[int, ...]
    pids: tuple[int, ...]
    num_ranks: int
    job_id: str
    token: str
    address: str
    timeout_s: float
    world: str

    def to_json(self) -> dict[str, Any]:
        """Return what json can write."""
        return asdict(self)

    @staticmethod
    def from_json(value: dict[str, Any]) -> WatchTask:
        """Read what to_json() returned."""
        lists = {name: tuple(value[name]) for name in ("place", "ranks", "pids")}
        return WatchTask(**{**value, **lists})


class Watcher:
    """The state of the process and its loop.

    Args:
        starter: The connection to the rank that has started it.
        task: What that rank wants.
    """

    def __init__(self, starter: JsonLines, task: WatchTask) -> None:
        self._starter: JsonLines | None = starter
        self._task = task
        self._ranks = [Rank(rank, pid) for rank, pid in zip(task.ranks, task.pids, strict=True)]
        self._watch = WorldWatch(_find_world(task))
        plan = HostsPlan(
            Endpoint(*task.place), task.num_hosts, task.number, task.job_id, task.token, task.address, task.timeout_s
        )
        self._agent = AgentClient(plan, len(task.ranks), 0, task.ranks)
        self._title = f"host {task.number} ({os.uname().nodename})"
        self._leave_at = float("inf")
        self._loop = Loop()

    def run(self) -> None:
        """Watch until all ranks of this host have ended, or it is known which rank or host is lost."""
        self._loop.on(self._agent.fileno(), self._hear_agent)
        for rank in self._ranks:
            self._follow(rank)
        look_at = 0.0
        while time.monotonic() < self._leave_at:
            if time.monotonic() >= look_at:
                look_at = time.monotonic() + _BETWEEN_LOOKS_S
                self._watch.look(self._ranks)
            self._loop.turn(_BETWEEN_LOOKS_S)
        self._agent.close()

    def _follow(self, rank: Rank) -> None:
        try:
            process = LocalProcess(rank.pid)
        except ProcessLookupError:
            self._note_end(rank)
            return

        def end() -> None:
            self._loop.off(process.fileno())
            process.close()
            self._note_end(rank)

        self._loop.on(process.fileno(), end)

    def _note_end(self, rank: Rank) -> None:
        """Note that a rank has ended, and accuse it unless it had left its groups before."""
        rank.status = 0
        places = [(group, row) for group in self._watch.groups() for row in group.snapshot() if row.pid == rank.pid]
        why = next(filter(None, (_describe_end(group, row) for group, row in places)), "")
        if why:
            rank.status = 1
            text = f"rank {rank.number} of {self._task.num_ranks} on {self._title[:-1]}, pid {rank.pid}) {why}"
            self._agent.accuse(_ATTEMPT, AttemptVerdict(text, self._task.number, rank=rank.number))
        if all(each.status == 0 for each in self._ranks):
            self._agent.tell_ended(_ATTEMPT)
            self._leave_at = 0.0
        elif not any(each.is_running for each in self._ranks):
            self._leave_at = time.monotonic() + _VERDICT_S

    def _hear_agent(self) -> None:
        try:
            messages = self._agent.read()
        except EOFError:
            self._tell_ranks(f"{self._title}: the agent of this host has died")
            self._answer({"kind": "refused", "why": "the agent of this host has died"})
            self._leave_at = 0.0
            return
        for message in messages:
            self._obey(message)

    def _obey(self, message: Message) -> None:
        kind = message["kind"]
        if kind == "start":
            hosts = JobHosts(tuple(HostCard.from_json(card) for card in message["cards"]), message["number"])
            self._title = f"host {hosts.number} ({hosts.cards[hosts.number].name})"
            self._answer({"kind": "started"})
        elif kind == "say":
            sys.stderr.write(f"phalanx: {message['text']}\n")
            sys.stderr.flush()
        elif kind == "asked":
            self._agent.answer(message, self._describe_ranks(message.get("what")))
        elif kind == "refused":
            self._answer(message)
            self._leave_at = 0.0
        elif kind == "verdict":
            verdict = AttemptVerdict.from_json(message["verdict"])
            if verdict.host != self._task.number or verdict.is_lost:
                self._tell_ranks(verdict.text)
            self._leave_at = 0.0
        elif kind in ("over", "lost"):
            self._leave_at = 0.0

    def _answer(self, message: Message) -> None:
        """Tell the rank that has started this process, which waits for one message."""
        if self._starter is not None:
            self._starter.send(message)
            self._starter.close()
            self._starter = None

    def _tell_ranks(self, why: str) -> None:
        self._watch.fail_elsewhere(self._ranks, why)

    def _describe_ranks(self, what: object) -> object:
        self._watch.look(self._ranks)
        running = [rank.pid for rank in self._ranks if rank.is_running]
        job = JobView(self._task.job_id, os.getpid(), len(self._ranks), pids=running, host=self._title)
        return answer_question(what, self._watch.observer.groups, running, job, self._ranks[0].number)


def _find_world(task: WatchTask) -> GroupSegment:
    observer = Observer()
    observer.look(task.pids)
    found = next((group for group in observer.groups if group.nonce.hex() == task.world), None)
    if found is None:
        raise EOFError  # all ranks of this host have ended
    return found


def _describe_end(group: GroupSegment, row: RankFacts) -> str:
    """Say how a rank has failed that has ended; "" if it had left this group in order."""
    fault = group.fault()
    if fault is not None and fault.kind == "peer_failed" and fault.culprit == row.rank:
        return f"raised: {fault.text}"
    return "has died" if row.state not in ("left", "absent") and fault is None else ""


def main(descriptor: int) -> None:
    """Be the watcher for the rank at the other end of a socket; return when it has ended."""
    if os.fork():
        os._exit(0)  # the rank waits for this process, and so no zombie is left there
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    starter = JsonLines(socket.socket(fileno=descriptor))
    with contextlib.suppress(EOFError):
        Watcher(starter, WatchTask.from_json(starter.await_first())).run()
    os._exit(0)
