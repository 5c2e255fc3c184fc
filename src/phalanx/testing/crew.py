"""Run a task on several ranks: wait for all, free the others when one fails, and end those that are late.

Whatever happens to a rank, the crew returns one ending per rank, within the time limit and a grace time.
"""

from __future__ import annotations

import time

from phalanx.engine import GroupSegment
from phalanx.launch.context import Placement
from phalanx.launch.rank import Starter
from phalanx.launch.rendezvous import NOWHERE, Rendezvous
from phalanx.launch.waiting import is_readable
from phalanx.settings import read_settings
from phalanx.testing.crew_rank import CrewRank
from phalanx.testing.ending import Ending
from phalanx.testing.task_watch import TaskWatch, Terminal

EXIT_PATIENCE_S = 5.0
_SEND_S = 30.0  # a rank may be stopped


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
    """Ranks that wait for a task, or run one. Not for several threads.

    Args:
        members: The ranks, in order; functions that start ranks add to this list.
        starter: The object that has started them; the crew closes it.
        terminal: The terminal that debugged ranks share, if there is one.
    """

    def __init__(self, members: list[CrewRank], starter: Starter, terminal: Terminal | None = None) -> None:
        self.members = members
        self._starter = starter
        self._terminal = terminal

    def are_alive(self) -> bool:
        """Tell whether no rank has ended."""
        return all(member.is_alive() for member in self.members)

    def send(self, task: bytes, segment: GroupSegment, meeting: str, rendezvous: Rendezvous = NOWHERE) -> None:
        """Give every rank a task, and say where its world meets.

        Raises:
            OSError: A rank is gone.
        """
        for member in self.members:
            member.files.clear()
            placement = Placement(member.number, len(self.members), meeting, rendezvous)
            member.connection.send(("task", placement, task), [segment.descriptor], timeout_s=_SEND_S)

    def wait(self, segment: GroupSegment, *, timeout_s: float) -> list[Ending]:
        """Wait until the task has ended on every rank.

        Raises:
            TaskInterrupted: The test was ended from outside.
        """
        start = time.monotonic()
        grace_s = read_settings().grace_s
        watch = TaskWatch(self.members, segment, self._terminal, grace_s=grace_s, deadline=start + timeout_s)
        try:
            return watch.run(self._starter)
        except (Exception, KeyboardInterrupt, SystemExit):
            raise
        except BaseException as reason:  # raised in pytest's process, for example by pytest-timeout
            raise TaskInterrupted(watch.abandon(), reason, time.monotonic() - start) from reason
        finally:
            watch.close()

    def wait_for_exit(self) -> list[CrewRank]:
        """Wait until ranks that have finished their work have ended; return those that had to be killed."""
        deadline = time.monotonic() + EXIT_PATIENCE_S
        self._hear_until(deadline)
        stuck = [member for member in self.members if member.status is None]
        self._kill()
        return stuck

    def close(self) -> None:
        """End all ranks."""
        self._kill()
        for member in self.members:
            member.close()
        self._starter.close()

    def _kill(self) -> None:
        for member in self.members:
            member.kill()  # a rank that has ended may have left processes behind
        self._hear_until(None)

    def _hear_until(self, deadline: float | None) -> None:
        """Wait for the ends of all ranks."""
        while any(member.is_running for member in self.members):
            left_s = None if deadline is None else max(0.0, deadline - time.monotonic())
            if not is_readable(self._starter.fileno(), left_s):
                return
            self._starter.read()
