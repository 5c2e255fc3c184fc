"""Ranks that are kept between tests: every test gets a new group, and ranks that can't be cleaned are replaced."""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
from collections.abc import Callable, Mapping
from typing import Any

from phalanx.engine import GroupSegment
from phalanx.launch.connection import Connection
from phalanx.launch.rendezvous import Rendezvous, open_rendezvous
from phalanx.launch.world import name_meeting, open_world
from phalanx.testing.crew import Crew
from phalanx.testing.ending import Ending
from phalanx.testing.rank_report import RankReport, report_failure
from phalanx.testing.taking_part import send_report, take_part

# Turns a received task into the function to run.
Prepare = Callable[[bytes, Connection], Callable[[], RankReport]]


class WarmRanks:
    """A crew of one size, and the state of the session that it was forked with.

    Args:
        num_ranks: How many ranks.
        start: Starts a crew of ranks that call serve().
        keep_failed: Whether to keep ranks that have only raised, as for examples of one test, which often raise.
    """

    def __init__(self, num_ranks: int, start: Callable[[], Crew], *, keep_failed: bool = False) -> None:
        self._num_ranks = num_ranks
        self._keep_failed = keep_failed
        self._start = start
        self._crew: Crew | None = None
        self._state: Mapping[int, Any] = {}
        self._owner = os.getpid()

    def require(self, state: Mapping[int, Any]) -> None:
        """Replace the ranks if they were forked with another state of the session than the next task needs."""
        if state.keys() != self._state.keys():
            self.close()
            self._state = state

    def run(self, task: bytes, *, timeout_s: float) -> list[Ending]:
        """Run a task on the ranks; start new ones if the old ones have ended."""
        with open_world(self._num_ranks) as segment, open_rendezvous() as rendezvous:
            if self._owner != os.getpid():  # this is a fork: the ranks belong to its parent
                self._crew, self._owner = None, os.getpid()
            if self._crew is None or not self._crew.are_alive():
                self.close()
                self._crew = self._start()
            try:
                self._send(task, segment, rendezvous)
                endings = self._crew.wait(segment, timeout_s=timeout_s)
            except BaseException:
                self.close()
                raise
        if not all(ending.is_clean(also_failed=self._keep_failed) for ending in endings):
            self.close()
        return endings

    def _send(self, task: bytes, segment: GroupSegment, rendezvous: Rendezvous) -> None:
        assert self._crew is not None
        meeting = name_meeting()
        try:
            self._crew.send(task, segment, meeting, rendezvous)
        except OSError:  # one has died since the last task
            self.close()
            self._crew = self._start()
            self._crew.send(task, segment, meeting, rendezvous)

    def close(self) -> None:
        """End them."""
        if self._crew is not None and self._owner == os.getpid():
            crew, self._crew = self._crew, None
            crew.close()


def serve(connection: Connection, prepare: Prepare) -> None:
    """Run a warm rank: run one task after the other until the crew closes the connection."""
    streams = sys.stdout, sys.stderr
    while (received := connection.receive()) is not None:
        (_, placement, task), (descriptor,) = received
        try:
            report = take_part(placement, descriptor, connection, prepare(task, connection))
        except BaseException as error:
            traceback.print_exc()
            report = report_failure(error)
        os.close(descriptor)
        sys.stdout, sys.stderr = streams
        _clean_up(report)
        send_report(report, connection)


def _clean_up(report: RankReport) -> None:
    """Clean up what a task may have left in this process."""
    dist: Any = sys.modules.get("torch.distributed")
    if dist is not None and dist.is_initialized() and report.outcome != "failed":
        dist.destroy_process_group()
    torch: Any = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized() and report.outcome != "failed":
        torch.cuda.empty_cache()  # ranks of another size may share the GPU next
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # a test may have closed it
            stream.flush()
