"""What a rank is said to be doing."""

from __future__ import annotations

import pytest

from phalanx.jobs.notes import Note
from phalanx.jobs.rank import JobRank
from phalanx.jobs.summary import describe_activity
from tests.diagnosis.observations import entry

_NOTE = Note("ValueError: x", "me/train.py:3", 1, False)


@pytest.mark.parametrize(
    ("rank", "is_python", "text"),
    [
        (JobRank(0), True, "has not started"),
        (JobRank(0, pid=7, status=0), True, "is done"),
        (JobRank(0, pid=7, status=3), True, "ended with exit code 3"),
        (JobRank(0, pid=7, note=_NOTE), True, "ends because of ValueError: x (me/train.py:3)"),
        (JobRank(0, pid=7, place="me/train.py:3 in step"), True, "is at me/train.py:3 in step"),
        (JobRank(0, pid=7, doing=entry(7), waits_for=(1,)), True, "is in all_reduce #7, me/train.py:61, for rank 1"),
        (JobRank(0, pid=7), True, "runs, and did not say where"),
        (JobRank(0, pid=7), False, "runs its executable; phalanx can't see where that is"),
    ],
)
def test_a_rank_is_described(rank: JobRank, is_python: bool, text: str) -> None:
    assert describe_activity(rank, is_python=is_python) == text
