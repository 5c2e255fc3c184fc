"""A job as other processes see it: its groups, its processes, and what its launcher says about it."""

from __future__ import annotations

from dataclasses import dataclass, field

from phalanx.engine import GroupSegment
from phalanx.engine.facts import FaultFacts, RankFacts, RankRecords


@dataclass(frozen=True)
class GroupView:
    """A group.

    Attributes:
        name: Its name.
        nonce: Tells it from others of its name.
        num_ranks: Its size.
        fault: Why it is broken; None when it is not.
        rows: Its ranks.
        records: The last operations of each rank; empty if not asked for.
    """

    name: str
    nonce: str
    num_ranks: int
    fault: FaultFacts | None
    rows: list[RankFacts]
    records: list[RankRecords] = field(default_factory=list)

    @property
    def is_empty(self) -> bool:
        """Whether no rank has joined it: the launcher makes a group that a program need not use."""
        return self.fault is None and all(row.state == "absent" for row in self.rows)


@dataclass
class ProcessView:
    """A process of a job.

    Attributes:
        pid: Its process id.
        state: The kernel's letter for its state; empty if it is gone.
        resident_bytes: Its memory.
        command: Its command line.
        stacks: The stacks of its threads, as faulthandler writes them; empty if it did not answer.
        rank_pid: For a process that a rank has started: the process of that rank; 0 for the rank itself.
    """

    pid: int
    state: str
    resident_bytes: int
    command: list[str]
    stacks: str = ""
    rank_pid: int = 0


@dataclass(frozen=True)
class JobView:
    """What the launcher of a job says about it; empty without a launcher.

    Attributes:
        name: The name of the job.
        pid: The launcher's process.
        num_ranks: How many ranks it has.
        started_unix: When it began.
        pids: The processes of its ranks, in order.
        command: What they run.
        first_rank: The number of the first of its ranks, if ranks of lower numbers run on other hosts.
        host: Which host of the job this is, such as "host 1 of 2"; empty if there is only one.
    """

    name: str = ""
    pid: int = 0
    num_ranks: int = 0
    started_unix: float = 0.0
    pids: list[int] = field(default_factory=list)
    command: list[str] = field(default_factory=list)
    first_rank: int = 0
    host: str = ""


def view_of(group: GroupSegment, records: list[RankRecords] | None = None) -> GroupView:
    """Return the view of a group."""
    return GroupView(group.name, group.nonce.hex(), group.num_ranks, group.fault(), group.snapshot(), records or [])
