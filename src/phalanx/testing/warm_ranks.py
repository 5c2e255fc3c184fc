"""Ranks that stay between tests: forked once, a fresh group and a clean slate for every test, replaced when unclean."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable
from typing import Any

from phalanx.settings import read_settings
from phalanx.testing.crew import Crew, Ending, Interact
from phalanx.testing.forked_ranks import fork_crew, new_world
from phalanx.testing.line import Line, close_descriptor
from phalanx.testing.place import Place, packed, take_part
from phalanx.testing.rank_report import RankReport, report_failure

# Turns what was sent into what to run, and says where: `prepare(task) -> (run, meeting, port)`.
Prepare = Callable[[bytes, Line], tuple[Callable[[], RankReport], str, int]]


class WarmRanks:
    """A crew of one size, and what it has been through."""

    def __init__(self, num_ranks: int, prepare: Prepare, *, redirect: bool, interact: Interact) -> None:
        self._num_ranks = num_ranks
        self._prepare = prepare
        self._redirect = redirect
        self._interact = interact
        self._crew: Crew | None = None

    def run(self, task: bytes, *, timeout_s: float) -> list[Ending]:
        """Run a task on them, on new ones if the old ones are gone."""
        with new_world(self._num_ranks) as segment:
            if self._crew is None or not all(member.is_running() for member in self._crew.members):
                self.close()
                self._crew = fork_crew(self._serve, self._num_ranks, redirect=self._redirect, interact=self._interact)
            try:
                self._crew.send(task, segment)
                endings = self._crew.wait(segment, timeout_s=timeout_s, grace_s=read_settings().grace_s)
            except BaseException:
                self.close()
                raise
        if not all(ending.is_clean() for ending in endings):
            self.close()
        return endings

    def close(self) -> None:
        """End them."""
        if self._crew is not None:
            crew, self._crew = self._crew, None
            crew.close()

    def _serve(self, rank: int, line: Line) -> None:
        while True:
            notice = line.receive_notice()
            if notice is None:
                return
            descriptor = notice[1]
            task = line.receive()
            if task is None or descriptor is None:
                return
            try:
                run, meeting, port = self._prepare(task, line)
                report = take_part(Place(rank, self._num_ranks, meeting, port), descriptor, line, run)
            except BaseException as error:
                traceback.print_exc()
                report = report_failure(error)
            close_descriptor(descriptor)
            _clean_up(report)
            line.send(packed(report))


def _clean_up(report: RankReport) -> None:
    """Undo what a test may have left in this process."""
    dist: Any = sys.modules.get("torch.distributed")
    if dist is not None and dist.is_initialized() and report.outcome != "failed":
        dist.destroy_process_group()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
