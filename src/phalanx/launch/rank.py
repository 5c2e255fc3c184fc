"""A rank as its launcher sees it, and the little that a launcher needs of a rank's process."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from phalanx.launch.orphans import kill_descendants
from phalanx.launch.waiting import is_readable

UNKNOWN_STATUS = -1  # nobody knows how it ended


class RankProcess(Protocol):
    """A rank's process, wherever it runs. A launcher reaches it in no other way."""

    def is_running(self) -> bool:
        """Tell whether it has not ended."""

    def signal(self, number: int) -> None:
        """Send it a signal, if it still runs."""

    def close(self) -> None:
        """Let go of the handle; the process goes on."""


class Starter(Protocol):
    """What has started ranks and hears how they end: their parent, or the zygote.

    It is where ranks on other hosts would come in: an agent there starts them, and sends what becomes of them.
    """

    def fileno(self) -> int:
        """Return what can be read when there is news of ranks."""

    def read(self) -> Sequence[Rank]:
        """Take the news, without waiting: set `process` and `status` of ranks; return those that have ended."""

    @property
    def is_over(self) -> bool:
        """Whether all ranks have ended, and with them all that they have started."""


@dataclass(eq=False)
class Rank:
    """One rank, from before it is started until after it has ended.

    Attributes:
        number: Which one.
        pid: Its process, or 0.
        process: A handle of that process, or None.
        status: How it ended: exit code, 256 + signal, or UNKNOWN_STATUS.
        sent: The signals that the launcher has sent it.
        failed_at: When it was known that it fails, by itself or because of another.
        is_consequence: Whether it only fails because another rank has.
        is_finished: Whether it has done its part: then it is let alone, whatever happens to the others.
    """

    number: int
    pid: int = 0
    process: RankProcess | None = None
    status: int | None = None
    sent: list[int] = field(default_factory=list)
    failed_at: float | None = None
    is_consequence: bool = False
    is_finished: bool = False

    @property
    def is_running(self) -> bool:
        """Whether it has a process, as far as its launcher has heard."""
        return self.pid != 0 and self.status is None

    @property
    def is_culprit(self) -> bool:
        """Whether it has failed, and not because another rank had."""
        return self.failed_at is not None and not self.is_consequence

    def send(self, number: int) -> None:
        """Send it a signal, if it still runs."""
        if self.is_running and self.process is not None:
            self.process.signal(number)
            self.sent.append(number)

    def fail(self, *, is_consequence: bool = False) -> bool:
        """Note that it has failed; tell whether that is new. What it does when it was told to end is no failure."""
        if self.failed_at is not None or self.sent:
            return False
        self.failed_at, self.is_consequence = time.monotonic(), is_consequence
        return True

    def release(self) -> None:
        """Let go of its process."""
        if self.process is not None:
            self.process.close()
            self.process = None


AnyRank = TypeVar("AnyRank", bound=Rank)


def first_culprit(ranks: Sequence[AnyRank]) -> AnyRank | None:
    """Return the rank that failed first, and not because another had; else the first that failed at all."""
    failed = [rank for rank in ranks if rank.failed_at is not None]
    return min(failed, key=lambda rank: (not rank.is_culprit, rank.failed_at), default=None)


class LocalProcess:
    """A process of this host.

    Args:
        pid: Which.
        has_group: Whether signals also go to what it has started, and SIGKILL to daemons that have left its group.

    Raises:
        ProcessLookupError: It has ended, and somebody has waited for it.
    """

    def __init__(self, pid: int, *, has_group: bool = False) -> None:
        self._pid = pid
        self._has_group = has_group
        self._pidfd = os.pidfd_open(pid)

    def fileno(self) -> int:
        """Return what can be read when it has ended."""
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
        """Let go of the handle."""
        os.close(self._pidfd)
