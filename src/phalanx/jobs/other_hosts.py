"""The other hosts of a job, as the launcher sees them through the agent of its host."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterator

from phalanx.jobs.elastic_meeting import meet_elastically
from phalanx.jobs.job import Job
from phalanx.jobs.no_job import NoJobError
from phalanx.launch.hosts.agent_client import AgentClient
from phalanx.launch.hosts.blame import AttemptVerdict
from phalanx.launch.hosts.cards import HostCard, JobHosts
from phalanx.launch.hosts.link import Message
from phalanx.launch.hosts.plan import HostsPlan
from phalanx.launch.hosts.start import JobStart
from phalanx.launch.loop import Loop


class OtherHosts:
    """What is known of the other hosts. Not for several threads.

    Args:
        agent: The agent of this host.
        job_id: The name of the job.
        say: Prints a line of the launcher.

    Attributes:
        job_id: The name of the job.
        start: The current attempt; None before the first.
        verdict: The verdict on it, if there is one.
        is_over: Whether all hosts have said that their ranks have ended well.
        is_lost: Whether the agent has died.
        answer: Answers a question of another host; set while ranks run.
    """

    def __init__(self, agent: AgentClient, job_id: str, say: Callable[[str], None]) -> None:
        self._agent = agent
        self._say = say
        self._refusal: NoJobError | None = None
        self._accused: AttemptVerdict | None = None
        self.job_id = job_id
        self.start: JobStart | None = None
        self.verdict: AttemptVerdict | None = None
        self.is_over = self.is_lost = False
        self.answer: Callable[[Message], object] | None = None

    def fileno(self) -> int:
        """Return a descriptor that can be read when there is news."""
        return self._agent.fileno()

    @property
    def agent_pid(self) -> int:
        """The process of the agent."""
        return self._agent.pid

    @property
    def title(self) -> str:
        """The name of this host for people."""
        assert self.start is not None
        hosts = self.start.hosts
        return f"host {hosts.number} ({hosts.cards[hosts.number].name})"

    @property
    def first_rank(self) -> int:
        """The number of the first rank here."""
        return 0 if self.start is None else self.start.hosts.first_rank

    @property
    def is_settled(self) -> bool:
        """Whether it is known how the attempt has ended."""
        return self.is_over or self.verdict is not None

    def read(self) -> None:
        """Take note of what the agent says.

        Raises:
            NoJobError: The agent has died before the job began.
        """
        try:
            messages = self._agent.read()
        except EOFError:
            self._lose_agent()
            return
        for message in messages:
            self._hear(message)

    def accuse(self, verdict: AttemptVerdict) -> None:
        """Tell all hosts what has failed here, at first or with more certainty than before."""
        if self.start is None or (self._accused is not None and not self._accused.is_consequence):
            return
        if self._accused is None or not verdict.is_consequence:
            self._accused = verdict
            self._agent.accuse(self.start.attempt, verdict)

    def tell_ended(self) -> None:
        """Tell all hosts that the ranks of this one have ended well."""
        assert self.start is not None
        self._agent.tell_ended(self.start.attempt)

    def tell_ready(self) -> None:
        """Tell all hosts that this one can start its ranks again."""
        self._agent.tell_ready()

    def await_start(self, attempt: int, loop: Loop, read_signals: Callable[[], list[signal.Signals]]) -> JobStart:
        """Wait until all hosts are ready for an attempt.

        Args:
            attempt: Its number.
            loop: A loop that calls `read` when there is news.
            read_signals: Returns the signals that have come to the launcher.

        Raises:
            NoJobError: This host was refused, not all hosts came in time, or somebody has ended the launcher.
        """
        while self.start is None or self.start.attempt < attempt:
            loop.turn(None)
            for number in read_signals():
                raise NoJobError(f"ended by {number.name} while it waited for other hosts", exit_code=128 + number)
            if self._refusal is not None:
                raise self._refusal
        return self.start

    def _hear(self, message: Message) -> None:
        kind = message["kind"]
        if kind == "say":
            self._say(message["text"])
        elif kind == "start":
            cards = tuple(HostCard.from_json(card) for card in message["cards"])
            hosts = JobHosts(cards, message["number"])
            self.start = JobStart(hosts, message["attempt"], message["place"], message["token"])
            self.verdict, self.is_over, self._accused = None, False, None
        elif kind == "verdict":
            self.verdict = AttemptVerdict.from_json(message["verdict"])
        elif kind == "over":
            self.is_over = True
        elif kind == "refused":
            self._refusal = NoJobError(message["why"])
        elif kind == "lost":
            exit_code = 1 if self.verdict is None else self.verdict.exit_code or 1
            self._refusal = NoJobError(f"there is no restart: {message['text']}", exit_code=exit_code)
        elif kind == "asked":
            self._agent.answer(message, None if self.answer is None else self.answer(message["what"]))

    def _lose_agent(self) -> None:
        self.is_lost = True
        self._refusal = self._refusal or NoJobError("the agent of this host has died", exit_code=1)
        if self.start is not None and not self.is_settled:
            number = self.start.hosts.number
            self.verdict = AttemptVerdict(f"{self.title}: its agent has died", number, 137, is_lost=True)


@contextlib.contextmanager
def join_hosts(job: Job, plan: HostsPlan, inbox: int, say: Callable[[str], None]) -> Iterator[OtherHosts]:
    """Start the agent of this host, and end it at the end.

    Args:
        job: The job.
        plan: Where its hosts meet.
        inbox: A descriptor that can be read when a signal has come.
        say: Prints a line of the launcher.

    Raises:
        NoJobError: A rendezvous of torch failed.
        OSError: The agent could not be started.
    """
    with contextlib.ExitStack() as cleanup:
        if not plan.token:
            say(
                "no token is set (PHALANX_JOB_TOKEN or --token-file): until all hosts have come, anybody who reaches "
                f"{plan.endpoint} can join this job"
            )
        if plan.backend != "phalanx":
            plan = cleanup.enter_context(meet_elastically(plan, inbox))
        agent = AgentClient(plan, job.num_ranks, job.max_restarts)
        cleanup.callback(agent.close)
        yield OtherHosts(agent, plan.job_id, say)
