"""An attempt of a job that runs on several hosts: the ranks of this host, and what the other hosts say meanwhile."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

from phalanx.engine import GroupSegment
from phalanx.errors import MismatchError, OperationTimeoutError
from phalanx.jobs.attempt import Attempt
from phalanx.jobs.host import Host
from phalanx.jobs.job import Job
from phalanx.jobs.other_hosts import OtherHosts
from phalanx.jobs.rank import JobRank
from phalanx.jobs.summary import describe_failure
from phalanx.launch.answers import answer_question
from phalanx.launch.disagreement import Disagreement
from phalanx.launch.hosts.access import keep_access
from phalanx.launch.hosts.addresses import parse_endpoint
from phalanx.launch.hosts.blame import AttemptVerdict
from phalanx.launch.hosts.start import JobStart
from phalanx.launch.rank import first_culprit

_TOLD_BY_GROUPS = (OperationTimeoutError.__name__, MismatchError.__name__)
_FIRST_WORDS_S = 2.0
_VERDICT_S = 5.0  # longer than it takes to notice that a host is silent


class JointAttempt(Attempt):
    """The attempt on this host. It ends when it is known how the attempt has ended on all hosts.

    Args:
        job: The job.
        host: What all attempts of a job have in common.
        world: The memory of the world of this host's ranks.
        deadline: When the job's time is up, or None.
        others: The other hosts.
        start: What they have agreed on.
    """

    def __init__(
        self, job: Job, host: Host, world: GroupSegment, deadline: float | None, others: OtherHosts, start: JobStart
    ) -> None:
        super().__init__(job, host, world, deadline)
        self._others = others
        self._start_told = start

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Hear the other hosts, answer their questions, and let `phalanx diagnose` ask them."""
        start = self._start_told
        self._others.answer = self._answer
        self.loop.on(self._others.fileno(), self._hear_others)
        self._note_verdict()
        with keep_access(parse_endpoint(start.place), start.token, start.hosts.number):
            yield
        self._others.answer = None

    def fail(
        self,
        rank: JobRank,
        why: str = "",
        *,
        is_consequence: bool = False,
        disagreement: Disagreement | None = None,
    ) -> None:
        """Note a rank's failure, free the others, and tell the other hosts."""
        super().fail(rank, why, is_consequence=is_consequence, disagreement=disagreement)
        self._accuse()

    def before_shutdown(self, rank: JobRank) -> None:
        """Tell the other hosts, before it takes a while to record what each rank was doing."""
        self._accuse()
        super().before_shutdown(rank)

    def _accuse(self) -> None:
        culprit = first_culprit(self.ranks)
        if culprit is None:
            return
        process = "" if culprit.note is not None else f", pid {culprit.pid}"
        hosts = self._start_told.hosts
        where = f" on host {hosts.number} ({hosts.cards[hosts.number].name}{process})"
        text = describe_failure(self.ranks, hosts.num_ranks, where)
        # A rank whose time was up has waited for another, and if ranks disagree, it is not known here who is right. The
        # group tells the other hosts more than this launcher can.
        is_told = culprit.note is not None and str(culprit.note).startswith(_TOLD_BY_GROUPS)
        is_consequence = is_told or not culprit.is_culprit
        self._others.accuse(
            AttemptVerdict(text, hosts.number, culprit.exit_code or 1, culprit.number, is_consequence=is_consequence)
        )

    def on_purpose(self, what: str, exit_code: int) -> None:
        """Tell the other hosts that this one ends the job."""
        number = self._start_told.hosts.number
        self._others.accuse(AttemptVerdict(f"{self._others.title} {what}", number, exit_code, is_final=True))

    def after_ranks(self) -> None:
        """Wait until it is known how the attempt has ended on all hosts."""
        is_done = self._outcome.kind == "done"
        if is_done:
            self._others.tell_ended()
        words_at = time.monotonic() + _FIRST_WORDS_S
        patience = float("inf") if is_done else time.monotonic() + _VERDICT_S
        while not self._others.is_settled and not self._is_ended_on_purpose() and time.monotonic() < patience:
            if time.monotonic() > words_at:
                words_at = float("inf")
                self._view.say("phalanx run: the ranks of this host are done; waiting for those of the other hosts")
            self._turn()

    def _answer(self, what: object) -> object:
        self.watch.look(self.ranks)
        running = [rank.pid for rank in self.ranks if rank.is_running]
        groups = self.watch.groups_to_describe()
        return answer_question(what, groups, running, self._host.record.view, self.ranks[0].number)

    def _is_ended_on_purpose(self) -> bool:
        return self._outcome.kind in ("signal", "timeout")

    def _hear_others(self) -> None:
        self._others.read()
        if self._others.is_lost:
            self.loop.off(self._others.fileno())
        self._note_verdict()

    def _note_verdict(self) -> None:
        verdict = self._others.verdict
        if verdict is None or self._outcome.verdict is not None:
            return
        self._outcome.verdict = verdict
        if verdict.host != self._start_told.hosts.number or verdict.is_lost:
            self._end_because_of(verdict)

    def _end_because_of(self, verdict: AttemptVerdict) -> None:
        """Free the ranks here, because of something that they are not to blame for."""
        if self._outcome.kind == "done":
            self._outcome.kind = "failed"
        if self.shutdown.has_begun or self.is_over:
            return
        if self._starter is not None:
            self._before_ending(verdict.text)
            self.watch.fail_elsewhere(self.ranks, verdict.text)
        self.free_ranks()
