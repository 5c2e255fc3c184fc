"""What a launcher knows of a rank that was killed, if all ranks have ended before it looks."""

from __future__ import annotations

import contextlib

from phalanx.diagnosis.views import JobView
from phalanx.errors import PeerDiedError
from phalanx.groups.shared_memory import SharedMemoryGroup
from phalanx.jobs.notes import Note, describe_end
from phalanx.jobs.rank import JobRank
from phalanx.jobs.summary import describe_cause
from phalanx.jobs.watch import JobWatch
from phalanx.launch.world import open_world

_LAST = "left all_reduce #3 sum float32 (4,), app/train.py:8, begun 36 ms ago"


def _note(pid: int, last_call: str) -> Note:
    error = PeerDiedError("all_reduce #4: a rank died")
    error.pid, error.last_call = pid, last_call
    return describe_end(error, 1)


def test_a_survivor_reports_what_the_dead_rank_did_last() -> None:
    assert (_note(812, _LAST).lost_pid, _note(812, _LAST).last_call) == (812, _LAST)
    assert (describe_end(ValueError("died"), 1).lost_pid, describe_end(ValueError("died"), 1).last_call) == (0, "")


def test_the_summary_takes_it_from_a_survivor_if_nothing_was_seen() -> None:
    killed = JobRank(3, pid=812, status=256 + 9)
    other = _note(81, "left barrier #1, app/train.py:2, begun 1 s ago")
    notes = [describe_end(ValueError(), 1), other, _note(812, _LAST)]
    assert describe_cause(killed, None, notes, is_python=False) == [f"  last        {_LAST}"]
    assert describe_cause(killed, None, [_note(812, "")], is_python=False) == []


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
