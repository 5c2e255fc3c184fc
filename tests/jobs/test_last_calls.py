"""What a launcher knows of a rank that was killed, if all ranks have ended before it looks."""

from __future__ import annotations

import contextlib

from phalanx.diagnosis.views import JobView
from phalanx.errors import PeerDiedError
from phalanx.groups.shared_memory import SharedMemoryGroup
from phalanx.jobs.notes import describe_end
from phalanx.jobs.rank import JobRank
from phalanx.jobs.summary import describe_cause
from phalanx.jobs.watch import JobWatch
from phalanx.launch.world import open_world

_HEARD = "rank 3 (pid 812) left all_reduce #3 sum float32 (4,), app/train.py:8, begun 36 ms ago"


def test_a_survivor_tells_what_the_dead_rank_did_last() -> None:
    error = PeerDiedError(f"all_reduce #4: rank 3 died\n  here     rank 0 of 4\n  died     {_HEARD}\n  do       look")
    assert describe_end(error, 1).lost == _HEARD
    assert describe_end(ValueError("died"), 1).lost == ""


def test_the_summary_takes_it_from_a_survivor_if_nothing_was_seen() -> None:
    killed = JobRank(3, pid=812, status=256 + 9)
    other = "rank 1 (pid 81) left barrier #1, app/train.py:2, begun 1 s ago"
    assert describe_cause(killed, None, ["", other, _HEARD], is_python=False) == [
        "  last        left all_reduce #3 sum float32 (4,), app/train.py:8, begun 36 ms ago"
    ]
    assert describe_cause(killed, None, ["rank 3 (pid 812) has not joined the group"], is_python=False) == []


def test_a_world_that_all_ranks_have_left_is_described_and_one_that_nobody_used_is_not() -> None:
    with open_world(1) as world:
        watch = JobWatch(world)
        assert watch.describe([], JobView(), "").groups == []
        group = SharedMemoryGroup(world.descriptor, 0, ranks=range(1), is_thread=False, timeout_s=20)
        with contextlib.closing(group):
            group.barrier()
        (seen,) = watch.describe([], JobView(), "").groups
        watch.close()
    assert [(row.state, row.finished) for row in seen.rows] == [("left", 1)]
