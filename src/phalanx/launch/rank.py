"""A rank as its launcher sees it, and the few methods of a rank's process that a launcher needs."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from phalanx.launch.disagreement import Disagreement, put_together
from phalanx.launch.orphans import kill_descendants
from phalanx.launch.waiting import is_readable

UNKNOWN_STATUS = -1  # it is not known how the process ended


class RankProcess(Protocol):
    """A rank's process, wherever it runs. A launcher uses no other way to reach it."""

    def is_running(self) -> bool:
        """Tell whether it has not ended."""

    def signal(self, number: int) -> None:
        """Send it a signal, if it still runs."""

    def close(self) -> None:
        """Close the handle; the process continues."""


class Starter(Protocol):
    """The object that has started ranks and hears how they end: for their parent process, or for the zygote."""

    def fileno(self) -> int:
        """Return a descriptor that becomes readable when there is news of ranks."""

    def read(self) -> Sequence[Rank]:
        """Read the news without waiting: set `process` and `status` of ranks, and return the ranks that have ended."""

    @property
    def is_over(self) -> bool:
        """Whether all ranks and all processes that they have started have ended."""

    def close(self) -> None:
        """Stop listening."""


@dataclass(eq=False)
class Rank:
    """One rank, from before it is started until after it has ended.

    Attributes:
        number: Its number.
        pid: The id of its process, or 0.
        process: A handle of that process, or None.
        status: How it ended: exit code, 256 + signal, or UNKNOWN_STATUS.
        sent: The signals that the launcher has sent it.
        failed_at: When the launcher found out that it failed, by itself or because of another rank.
        is_consequence: Whether it failed only because another rank had failed.
        disagreement: What is known of the mismatch because of which it failed; None if it failed for another reason.
        is_finished: Whether it has done its part; then it gets no signals when other ranks fail.
        first: The number of the first rank of this launcher; other hosts may have ranks of lower numbers.
    """

    number: int
    pid: int = 0
    process: RankProcess | None = None
    status: int | None = None
    sent: list[int] = field(default_factory=list)
    failed_at: float | None = None
    is_consequence: bool = False
    disagreement: Disagreement | None = None
    is_finished: bool = False
    first: int = 0

    @property
    def index(self) -> int:
        """Its place among the ranks of this launcher, which is its number in the memory of their world."""
        return self.number - self.first

    @property
    def is_running(self) -> bool:
        """Whether it has a process, as far as its launcher knows."""
        return self.pid != 0 and self.status is None

    @property
    def is_culprit(self) -> bool:
        """Whether it has failed, and not because another rank had failed."""
        return self.failed_at is not None and not self.is_consequence

    def send(self, number: int) -> None:
        """Send it a signal, if it still runs."""
        if self.is_running and self.process is not None:
            self.process.signal(number)
            self.sent.append(number)

    def fail(self, *, is_consequence: bool = False, disagreement: Disagreement | None = None) -> bool:
        """Note that it has failed; tell whether that is new. After a signal from the launcher, it does not count."""
        if self.failed_at is not None or self.sent:
            return False
        self.failed_at, self.is_consequence = time.monotonic(), is_consequence
        self.disagreement = disagreement
        return True

    def release(self) -> None:
        """Close the handle of its process."""
        if self.process is not None:
            self.process.close()
            self.process = None


AnyRank = TypeVar("AnyRank", bound=Rank)


def first_culprit(ranks: Sequence[AnyRank]) -> AnyRank | None:
    """Return the first rank that failed by itself; if there is none, the first rank that failed."""
    failed = [rank for rank in ranks if rank.failed_at is not None]
    return min(failed, key=lambda rank: (not rank.is_culprit, rank.failed_at), default=None)


def settle_disagreements(ranks: Sequence[Rank]) -> None:
    """Note which ranks are right, if ranks made different calls, from what all of them know."""
    for rank, known in zip(ranks, put_together([rank.disagreement for rank in ranks]), strict=True):
        rank.disagreement = known
        if known is not None and known.is_right:
            rank.is_consequence = True


class LocalProcess:
    """A process of this host.

    Args:
        pid: Its id.
        has_group: Whether signals also go to its process group, and SIGKILL to daemons that have left the group.

    Raises:
        ProcessLookupError: It has ended, and was waited for.
    """

    def __init__(self, pid: int, *, has_group: bool = False) -> None:
        self._pid = pid
        self._has_group = has_group
        self._pidfd = os.pidfd_open(pid)

    def fileno(self) -> int:
        """Return a descriptor that becomes readable when it has ended."""
        return self._pidfd

    def is_running(self) -> bool:
        """Tell whether it has not ended."""
        return not is_readable(self._pidfd, 0)

    def signal(self, number: int) -> None:
        """Send it a signal, if it still runs."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if self._has_group:
                if number == signal.SIGKILL and self.is_running():
                    kill_descendants(self._pid)
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(self._pid, number)
            signal.pidfd_send_signal(self._pidfd, number)  # it may have left its process group

    def close(self) -> None:
        """Close the handle."""
        os.close(self._pidfd)
