"""Run ranks as processes: ask the zygote for them, collect their reports, and end them when one fails."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import time
from dataclasses import dataclass
from typing import Any

from phalanx.diagnosis.findings import place_of, places_of_children
from phalanx.diagnosis.observation import Observation, describe
from phalanx.diagnosis.views import JobView
from phalanx.engine import GroupSegment
from phalanx.errors import UsageError
from phalanx.launch.connection import connected_pair
from phalanx.launch.outcome import (
    SpawnedRank,
    describe_place,
    describe_unfinished,
    raise_first,
    rank_failed,
    too_slow,
    unpack,
)
from phalanx.launch.rank_devices import RankGpus
from phalanx.launch.rank_process import StartRequest
from phalanx.launch.rendezvous import open_rendezvous
from phalanx.launch.sending import pack
from phalanx.launch.supervisor import Supervisor
from phalanx.launch.terminal import foreground_group, give_foreground
from phalanx.launch.world_watch import WorldWatch
from phalanx.launch.zygote_client import shared_zygote
from phalanx.launch.zygote_ranks import ZygoteRanks, make_request, open_standard_streams
from phalanx.scarcity import in_words

Task = tuple[Any, tuple[Any, ...], dict[str, Any]]


@dataclass(frozen=True)
class Limits:
    """The time limit, and whether the other ranks continue when one dies."""

    timeout_s: float | None
    grace_s: float
    tolerate_losses: bool


def run_processes(
    task: Task,
    num_ranks: int,
    segment: GroupSegment,
    *,
    meeting: str,
    num_threads: int,
    limits: Limits,
    gpus: RankGpus | None,
) -> list[Any]:
    """Run the task on that many processes.

    Raises:
        UsageError: The function or its arguments can't be pickled.
        Exception: As spawn().
    """
    try:
        payload = pack(task)
    except Exception as error:
        raise UsageError(f"spawn: the function or its arguments can't be sent to the ranks: {error}") from error
    request = make_request(payload, num_ranks, meeting, num_threads, gpus)
    with open_rendezvous() as rendezvous, _Spawn(num_ranks, segment, limits) as ranks:
        ranks.start(dataclasses.replace(request, rendezvous=rendezvous))
        return ranks.run()


class _Spawn(Supervisor[SpawnedRank]):
    """The policy of spawn(): collect every rank's report, raise when one fails, and end all ranks on exit."""

    def __init__(self, num_ranks: int, segment: GroupSegment, limits: Limits) -> None:
        ranks = [SpawnedRank(number) for number in range(num_ranks)]
        super().__init__(ranks, WorldWatch(segment), grace_s=limits.grace_s)
        self._limits = limits
        self._cleanup = contextlib.ExitStack()

    def __enter__(self) -> _Spawn:
        return self

    def __exit__(self, *_: object) -> None:
        if foreground_group() in [rank.pid for rank in self.ranks if rank.pid]:  # a debugged rank has died
            give_foreground(os.getpgrp())
        self._cleanup.close()  # the zygote ends the ranks that still run
        self.watch.close()
        self.loop.close()

    def start(self, request: StartRequest) -> None:
        with contextlib.ExitStack() as theirs:
            try:
                starter = self._cleanup.enter_context(ZygoteRanks(self.ranks))
                streams = open_standard_streams(theirs)
                reports = [self._connect(rank, theirs) for rank in self.ranks]
            except OSError as error:
                raise in_words(error, f"spawn: no descriptors for {len(self.ranks)} ranks") from error
            starter.start(request, [self.watch.world.descriptor, *streams, *reports], shared_zygote())
        self.listen_to(starter)

    def _connect(self, rank: SpawnedRank, theirs: contextlib.ExitStack) -> int:
        """Make a connection to a rank; return the rank's end."""
        ours, other = connected_pair()
        theirs.callback(other.close)
        self._cleanup.callback(ours.close)
        rank.connection = ours
        self.loop.on(ours.fileno(), functools.partial(self._read_report, rank))
        return other.fileno()

    def run(self) -> list[Any]:
        self.deadline = None if self._limits.timeout_s is None else time.monotonic() + self._limits.timeout_s
        try:
            while not self.is_over:
                self.turn()
        except KeyboardInterrupt as stop:
            late, places = self._find_late()
            stop.add_note(f"spawn: interrupted; {describe_unfinished(late, len(self.ranks), places)}")
            raise
        if any(rank.failed_at is not None for rank in self.ranks):
            raise_first(self.ranks)
        return [
            rank_failed(rank, len(self.ranks)) if rank.report is None else unpack(rank.report) for rank in self.ranks
        ]

    def on_deadline(self) -> None:
        self.deadline = None
        late, places = self._find_late()
        if late:
            raise too_slow(late, len(self.ranks), self._limits.timeout_s or 0, places)

    def _find_late(self) -> tuple[list[int], dict[int, str]]:
        """Return the ranks that are not done, and where in the program they are."""
        late = self.unfinished
        pids = [rank.pid for rank in late if rank.pid]
        seen = describe([], pids, JobView(), with_stacks=True)
        return [rank.number for rank in late], {rank.number: _place_of(seen, rank.pid) for rank in late if rank.pid}

    def on_end(self, rank: SpawnedRank) -> bool:
        self._read_report(rank)
        if rank.report is None and not self._limits.tolerate_losses:
            self.fail(rank)
        return rank.report is not None

    def _read_report(self, rank: SpawnedRank) -> None:
        assert rank.connection is not None
        try:
            received = rank.connection.receive_nowait()
        except EOFError:
            self.loop.off(rank.connection.fileno())
            return
        if received is None:
            return
        report = rank.report = received[0]
        if report.exception is not None:
            self.fail(
                rank,
                report.description,
                is_consequence=report.is_consequence,
                disagreement=report.disagreement,
            )


def _place_of(seen: Observation, pid: int) -> str:
    own = next((place_of(process) for process in seen.processes if process.pid == pid), "")
    return describe_place(own, places_of_children(seen, pid))
