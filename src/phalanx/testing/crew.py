"""Several ranks at one task: wait for all, free the others when one fails, end those that are late.

Whatever happens to a rank, the crew comes back with one ending per rank, within the time limit and a grace.
"""

from __future__ import annotations

import selectors
import signal
import time
from collections.abc import Callable, Sequence

from phalanx.engine import GroupSegment
from phalanx.testing.ending import Ending
from phalanx.testing.member import Member
from phalanx.testing.task_watch import TaskWatch
from phalanx.testing.terminal import Terminal
from phalanx.testing.watched_groups import WatchedGroups

EXIT_PATIENCE_S = 5.0


class TaskInterrupted(Exception):
    """A task was ended from outside.

    Attributes:
        endings: What the ranks were doing.
        reason: What was raised in this process.
        seconds: How long the task had run.
    """

    def __init__(self, endings: list[Ending], reason: BaseException, seconds: float) -> None:
        super().__init__(str(reason))
        self.endings = endings
        self.reason = reason
        self.seconds = seconds


class Crew:
    """Ranks that are ready for a task, or at one. Not for several threads.

    Args:
        members: The ranks, in order.
        terminal: What ranks that are debugged share.
        on_close: Called at the end.
    """

    def __init__(
        self, members: Sequence[Member], terminal: Terminal, on_close: Callable[[], None] = lambda: None
    ) -> None:
        self.members = list(members)
        self._terminal = terminal
        self._on_close = on_close

    def send(self, task: bytes, segment: GroupSegment) -> None:
        """Give every rank a task, and the memory of its world.

        Raises:
            OSError: A rank is gone.
        """
        for member in self.members:
            member.files.clear()
            member.line.notify("task", len(self.members), descriptor=segment.descriptor)
            member.line.send(task)

    def wait(self, segment: GroupSegment, *, timeout_s: float, grace_s: float) -> list[Ending]:
        """Wait until the task is done on every rank, or can't be.

        Raises:
            TaskInterrupted: Somebody has ended the test from outside.
        """
        watch = TaskWatch(self.members, WatchedGroups(segment), self._terminal, grace_s)
        start = time.monotonic()
        try:
            return watch.run(start + timeout_s)
        except (Exception, KeyboardInterrupt, SystemExit):
            raise
        except BaseException as reason:  # pytest's own, such as the alarm of pytest-timeout
            raise TaskInterrupted(watch.abandon(), reason, time.monotonic() - start) from reason
        finally:
            watch.close()

    def close(self) -> None:
        """End all ranks."""
        for member in self.members:
            member.signal(signal.SIGKILL)
        for member in self.members:
            member.close()
        self._on_close()


def wait_for_exit(members: Sequence[Member]) -> list[Member]:
    """Wait until ranks that have nothing more to do have ended; return those that had to be killed."""
    stuck = []
    deadline = time.monotonic() + EXIT_PATIENCE_S
    for member in members:
        if member.status is not None:
            continue
        selector = selectors.DefaultSelector()
        selector.register(member.watch, selectors.EVENT_READ)
        if not selector.select(max(0.0, deadline - time.monotonic())):
            stuck.append(member)
            member.signal(signal.SIGKILL)
        selector.close()
        member.reap()
    return stuck
